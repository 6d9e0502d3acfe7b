//! Route plans bound to a runtime: the instances of their backends, and the methods that layers call.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use pyo3::{
    PyTraverseError, PyVisit,
    prelude::*,
    types::{PyInt, PyString},
};
use switchrail::{BackendId, BatchTables, Entry, Op, Phase};

use crate::{
    backend::Registration,
    errors::raise,
    exception::exception,
    objects::Calls,
    plan::{RoutePlan, layer_of, parse_any},
    registry::Runtime,
    resolve::sequences,
};

/// A route plan with an instance of each of its backends that has a Python object.
#[pyclass(frozen, module = "switchrail._core")]
pub struct BoundPlan {
    plan: Py<RoutePlan>,
    runtime: Arc<switchrail::Runtime>,
    calls: Calls,
    ops: [Py<PyString>; Op::ALL.len()],
    phases: [Py<PyString>; Phase::ALL.len()],
}

#[pymethods]
impl BoundPlan {
    /// Binds a plan to a runtime. For each backend of the plan that has a Python object, calls `build` once
    /// with the plan's registration and that object; `build` returns the instance.
    #[new]
    fn new(
        runtime: &Bound<'_, Runtime>,
        plan: &Bound<'_, RoutePlan>,
        build: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let (py, runtime, core) = (runtime.py(), runtime.get(), &plan.get().core);
        let objects = loop {
            let found = core.bind(&runtime.core.snapshot()).map_err(raise)?;
            let object = |backend: &Arc<switchrail::Registration>| match backend.entry {
                Entry::Native(_) => Some(None),
                Entry::Foreign => runtime.objects.get(py, backend.id).map(Some),
            };
            // A registration that was withdrawn after the snapshot has no object. The next snapshot no longer
            // contains it.
            if let Some(objects) = found.iter().map(object).collect() {
                break objects;
            }
        };
        Ok(Self {
            calls: Calls::build(core, objects, build)?,
            plan: plan.clone().unbind(),
            runtime: Arc::clone(&runtime.core),
            ops: Op::ALL.map(|op| PyString::intern(py, op.name()).unbind()),
            phases: Phase::ALL.map(|phase| PyString::intern(py, phase.name()).unbind()),
        })
    }

    /// The plan.
    #[getter]
    fn plan(&self, py: Python<'_>) -> Py<RoutePlan> {
        self.plan.clone_ref(py)
    }

    /// The routes for a batch in a phase. For each sequence, `seqlens` has the number of rows, and
    /// `kv_seqlens` the number of cached tokens after the call; without `kv_seqlens`, both numbers are equal.
    #[pyo3(signature = (phase, seqlens, kv_seqlens=None))]
    fn at(
        slf: &Bound<'_, Self>,
        phase: &Bound<'_, PyAny>,
        seqlens: &Bound<'_, PyAny>,
        kv_seqlens: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<BatchRoutes> {
        let bound = slf.get();
        let (core, phase) = (bound.core(), bound.phase(phase)?);
        let tables = if core.is_split(phase) {
            core.select(phase, &sequences(seqlens, kv_seqlens)?)
        } else {
            core.select(phase, &[])
        };
        Ok(BatchRoutes {
            plan: slf.clone().unbind(),
            tables: tables.map_err(raise)?,
        })
    }

    /// The bound method that serves an op of a layer in a phase. The layer is given as in `RoutePlan.lookup`.
    #[pyo3(signature = (op, phase, layer_id=None, layer=None))]
    fn lookup(
        &self,
        py: Python<'_>,
        op: &Bound<'_, PyAny>,
        phase: &Bound<'_, PyAny>,
        layer_id: Option<&Bound<'_, PyAny>>,
        layer: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        if let (Some(op), Some(phase), Some(id), None) = (
            position(&self.ops, op),
            position(&self.phases, phase),
            layer_id,
            layer,
        ) && id.is_exact_instance_of::<PyInt>()
            && let Ok(id) = id.extract()
            && let Some(call) = self
                .calls
                .get(self.core().start(Op::ALL[op], Phase::ALL[phase]), id)
        {
            return Ok(call.clone_ref(py));
        }
        let (start, layer, id) = self.route(py, op, phase, layer_id, layer)?;
        self.call(py, start, layer, id)
    }

    /// The instance whose method `lookup` returns.
    #[pyo3(signature = (op, phase, layer_id=None, layer=None))]
    fn backend(
        &self,
        py: Python<'_>,
        op: &Bound<'_, PyAny>,
        phase: &Bound<'_, PyAny>,
        layer_id: Option<&Bound<'_, PyAny>>,
        layer: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (.., id) = self.route(py, op, phase, layer_id, layer)?;
        self.instance(py, id)
    }

    /// Whether the runtime has committed a change since the plan was made, so that a new plan might differ.
    fn is_stale(&self) -> bool {
        self.core().is_stale(&self.runtime)
    }

    fn __repr__(&self) -> String {
        format!("BoundPlan(model={:?})", self.core().layout().model())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.plan)?;
        self.calls.traverse(visit)
    }
}

impl BoundPlan {
    fn core(&self) -> &switchrail::RoutePlan {
        &self.plan.get().core
    }

    /// Parses an op, which is usually an interned name.
    fn op(&self, op: &Bound<'_, PyAny>) -> PyResult<Op> {
        position(&self.ops, op).map_or_else(|| parse_any(op), |op| Ok(Op::ALL[op]))
    }

    /// Parses a phase, which is usually an interned name.
    fn phase(&self, phase: &Bound<'_, PyAny>) -> PyResult<Phase> {
        position(&self.phases, phase).map_or_else(|| parse_any(phase), |phase| Ok(Phase::ALL[phase]))
    }

    /// The route for the arguments of a lookup: the start of its table, the layer and the backend.
    fn route(
        &self,
        py: Python<'_>,
        op: &Bound<'_, PyAny>,
        phase: &Bound<'_, PyAny>,
        layer_id: Option<&Bound<'_, PyAny>>,
        layer: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(usize, usize, BackendId)> {
        let (op, phase) = (self.op(op)?, self.phase(phase)?);
        let layer = layer_of(py, self.core().layout(), layer_id, layer)?;
        let id = self.core().lookup(layer, op, phase).map_err(raise)?;
        Ok((self.core().start(op, phase), layer, id))
    }

    /// The bound method for one of the plan's routes.
    fn call(&self, py: Python<'_>, start: usize, layer: usize, id: BackendId) -> PyResult<Py<PyAny>> {
        let call = self.calls.get(start, layer);
        call.map_or_else(|| Err(self.native(py, id)), |call| Ok(call.clone_ref(py)))
    }

    /// The instance of one of the plan's backends.
    fn instance(&self, py: Python<'_>, id: BackendId) -> PyResult<Py<PyAny>> {
        self.calls.instance(py, id).ok_or_else(|| self.native(py, id))
    }

    fn native(&self, py: Python<'_>, id: BackendId) -> PyErr {
        let name = self.plan.get().name(id);
        let message = format!("backend {name:?} is native: it is called from Rust, and has no Python object");
        exception(py, "NoRouteError", message, None)
    }
}

/// The index of a name among interned names, compared by identity. `None` if this object is not interned,
/// even if an equal string is.
#[inline]
fn position(names: &[Py<PyString>], name: &Bound<'_, PyAny>) -> Option<usize> {
    names.iter().position(|known| known.as_ptr() == name.as_ptr())
}

/// The routes of a bound plan for one batch in one phase.
#[pyclass(frozen, module = "switchrail._core")]
pub struct BatchRoutes {
    plan: Py<BoundPlan>,
    tables: BatchTables,
}

#[pymethods]
impl BatchRoutes {
    #[getter]
    fn phase(&self) -> &'static str {
        self.tables.phase().name()
    }

    /// The bound method that serves an op of a layer. The layer is given as in `RoutePlan.lookup`.
    #[pyo3(signature = (op, layer_id=None, layer=None))]
    fn lookup(
        &self,
        py: Python<'_>,
        op: &Bound<'_, PyAny>,
        layer_id: Option<&Bound<'_, PyAny>>,
        layer: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let bound = self.plan.get();
        if let (Some(op), Some(id), None) = (position(&bound.ops, op), layer_id, layer)
            && id.is_exact_instance_of::<PyInt>()
            && let Ok(id) = id.extract()
            && let Some(call) = bound.calls.get(self.tables.start(Op::ALL[op]), id)
        {
            return Ok(call.clone_ref(py));
        }
        let (op, layer, id) = self.route(py, op, layer_id, layer)?;
        bound.call(py, self.tables.start(op), layer, id)
    }

    /// The instance whose method `lookup` returns.
    #[pyo3(signature = (op, layer_id=None, layer=None))]
    fn backend(
        &self,
        py: Python<'_>,
        op: &Bound<'_, PyAny>,
        layer_id: Option<&Bound<'_, PyAny>>,
        layer: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (_, _, id) = self.route(py, op, layer_id, layer)?;
        self.plan.get().instance(py, id)
    }

    /// The registration of the instance that `backend` returns.
    #[pyo3(signature = (op, layer_id=None, layer=None))]
    fn registration(
        &self,
        py: Python<'_>,
        op: &Bound<'_, PyAny>,
        layer_id: Option<&Bound<'_, PyAny>>,
        layer: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Registration> {
        let (_, _, id) = self.route(py, op, layer_id, layer)?;
        let found = self.plan.get().core().backend(id);
        Ok(Registration(Arc::clone(found.expect("a plan pins what serves"))))
    }

    /// The instances that serve the batch, each with its op, without duplicates.
    #[getter]
    fn backends(&self, py: Python<'_>) -> PyResult<Vec<(&'static str, Py<PyAny>)>> {
        let bound = self.plan.get();
        let mut found: Vec<(Op, BackendId)> = Vec::new();
        for (_, op, id) in bound.core().selected(&self.tables) {
            if !found.contains(&(op, id)) {
                found.push((op, id));
            }
        }
        let instance = |(op, id): (Op, _)| Ok((op.name(), bound.instance(py, id)?));
        found.into_iter().map(instance).collect()
    }

    /// All routes as (layer id, op, backend name).
    #[getter]
    fn table(&self) -> Vec<(usize, &'static str, String)> {
        let bound = self.plan.get();
        bound
            .core()
            .selected(&self.tables)
            .map(|(layer, op, id)| (layer, op.name(), bound.plan.get().name(id)))
            .collect()
    }

    /// Whether `other` selects the same tables of the same bound plan.
    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other
            .cast::<Self>()
            .is_ok_and(|other| other.get().plan.is(&self.plan) && other.get().tables == self.tables)
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.tables.hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self) -> String {
        let model = self.plan.get().core().layout().model().to_owned();
        format!("BatchRoutes(model={model:?}, phase={:?})", self.phase())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.plan)
    }
}

impl BatchRoutes {
    /// The route for the arguments of a lookup.
    fn route(
        &self,
        py: Python<'_>,
        op: &Bound<'_, PyAny>,
        layer_id: Option<&Bound<'_, PyAny>>,
        layer: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(Op, usize, BackendId)> {
        let bound = self.plan.get();
        let op = bound.op(op)?;
        let layer = layer_of(py, bound.core().layout(), layer_id, layer)?;
        let id = bound.core().lookup_selected(layer, op, &self.tables);
        Ok((op, layer, id.map_err(raise)?))
    }
}
