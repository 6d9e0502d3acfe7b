//! Plugin discovery, backend registry and layer routing for attention kernels.
//!
//! This crate decides which plugins load, which backend serves each layer, and in which order hooks run. It does
//! not depend on Python. These steps lead to a call:
//!
//! 1. [`discover`] reads the metadata of the distributions on a search path and lists their plugins; nothing is imported.
//! 2. [`Selection`] decides which plugins may be loaded; a [`Lock`] blocks those of distributions that have changed.
//! 3. Each plugin registers its [`BackendSpec`]s in a [`Transaction`] of the [`Runtime`]; readers see immutable
//!    [`Snapshot`]s.
//! 4. [`Layout::from_config`] determines the kind of each layer of a model.
//! 5. A [`RoutePlan`] pins the backend for each layer, op and phase, with a [`Decision`] that gives the
//!    reasons. If times were measured, it can pin several backends, each for a class of batches.
//! 6. Equal [`Fingerprint`]s of two processes show that their plugins, hooks, backends and plans are the same.
//!
//! [`order()`] computes the order of hooks, and [`order_plugins`] the order in which plugins' functions run.
//!
//! Errors implement [`CoreError`]: a stable code, the fields as data, and a readable message.

mod backend;
mod discovery;
mod error;
mod fingerprint;
#[cfg(any(fuzzing, test))]
pub mod fuzz;
mod layout;
mod load_order;
mod lock;
mod name;
mod op;
mod order;
mod package;
mod plan;
mod plugin;
mod preferences;
mod registry;
mod resolve;
mod schema;
mod selection;
mod shown;
mod suggest;

pub use backend::*;
pub use discovery::*;
pub use error::CoreError;
pub use fingerprint::*;
pub use layout::*;
pub use load_order::*;
pub use lock::*;
pub use name::*;
pub use op::*;
pub use order::*;
pub use package::*;
pub use plan::*;
pub use plugin::*;
pub use preferences::*;
pub use registry::*;
pub use resolve::*;
pub use schema::*;
pub use selection::*;
pub use shown::*;
pub use suggest::*;
