//! Mirror of the core's `fingerprint`.

use pyo3::prelude::*;
use switchrail::{FingerprintInputs, HookChain};

use crate::{
    json,
    mirror::mirror,
    plan::RoutePlan,
    plugin::{Plugin, records},
    registry::Runtime,
};

mirror! {
    /// A digest of a process's plugins, hooks, backends and route plans.
    Fingerprint(switchrail::Fingerprint) {
        #[getter]
        fn digest(&self) -> &str {
            &self.0.digest
        }

        /// The digested document.
        #[getter]
        fn inputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
            json::to_py(py, &self.0.inputs)
        }
    }
}

/// Digests a runtime's backends, and the given plugins, hooks and plans. Each entry of `hooks` is a target with
/// the names of its hooks, in order.
#[pyfunction]
pub fn fingerprint(
    runtime: &Runtime,
    plugins: Vec<Bound<'_, Plugin>>,
    hooks: Vec<(String, Vec<String>)>,
    plans: Vec<Bound<'_, RoutePlan>>,
) -> Fingerprint {
    let plugins = records(&plugins);
    let hooks: Vec<HookChain> = hooks
        .into_iter()
        .map(|(target, hooks)| HookChain { target, hooks })
        .collect();
    let plans: Vec<&switchrail::RoutePlan> = plans.iter().map(|plan| &plan.get().core).collect();
    let snapshot = runtime.core.snapshot();
    let inputs = FingerprintInputs {
        plugins: &plugins,
        hooks: &hooks,
        snapshot: &snapshot,
        plans: &plans,
    };
    Fingerprint(switchrail::Fingerprint::new(inputs))
}
