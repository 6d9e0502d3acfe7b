//! Python binding of the `switchrail` core. Most files mirror parts of the core, and none makes decisions.
//!
//! Files without a counterpart in the core: `bound` holds the instances of a plan's backends, `objects`
//! stores the registrations' Python objects, `errors` maps errors, `exception` creates exceptions, `json`
//! converts data, `text` reads strings, and `mirror` declares classes.
#![allow(
    clippy::needless_pass_by_value,
    reason = "PyO3 hands arguments over by value, and so does map_err"
)]

mod backend;
mod bound;
mod discovery;
mod errors;
mod exception;
mod fingerprint;
mod json;
mod layout;
mod load_order;
mod lock;
mod mirror;
mod objects;
mod op;
mod order;
mod plan;
mod plugin;
mod registry;
mod resolve;
mod suggest;
mod text;

/// The extension module.
#[pyo3::pymodule(gil_used = false)]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::{
        backend::Registration,
        bound::{BatchRoutes, BoundPlan},
        discovery::{Discovery, discover},
        fingerprint::{Fingerprint, fingerprint},
        layout::{Layer, Layout},
        load_order::order_plugins,
        lock::{Lock, LockDifference},
        op::parse_op,
        order::order,
        plan::{Route, RoutePlan},
        plugin::{Plugin, parse_allow, platform_of, select},
        registry::{Commit, Runtime, Snapshot, Transaction},
        resolve::{Decision, Rejection, load_of, preference_keys},
        suggest::nearest,
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::op::add_names(module)
    }
}
