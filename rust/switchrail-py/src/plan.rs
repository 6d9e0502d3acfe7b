//! Mirror of the core's `plan`: route plans, with the bound methods that they lead to.

use std::{collections::BTreeMap, sync::Arc};

use pyo3::{
    PyTraverseError, PyVisit,
    prelude::*,
    types::{PyInt, PyString},
};
use switchrail::{BackendId, BatchTables, FingerprintInputs, Op, Phase, PlanRequest, Preferences};

use crate::{
    backend::Registration,
    errors::{arguments, raise},
    json,
    layout::{Layout, read_id, refuse_id},
    mirror::mirror,
    objects::{Calls, own_id},
    op::{DeviceForm, parse, parse_all},
    registry::Runtime,
    resolve::{Decision, Measurement, measurements, sequences},
};

/// A `PlanRequest` as `switchrail.runtime` writes it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Request {
    device: DeviceForm,
    dtype: String,
    state_dtype: Option<String>,
    page_size: Option<u32>,
    phases: Vec<String>,
    preferences: BTreeMap<String, String>,
    state_layouts: BTreeMap<String, String>,
    features: BTreeMap<String, Vec<String>>,
    packages: BTreeMap<String, String>,
    no_decay: Vec<String>,
    measurements: Vec<Measurement>,
}

impl Request {
    fn into_core(self) -> PyResult<PlanRequest> {
        let features = self
            .features
            .into_iter()
            .map(|(op, names)| Ok((parse(&op)?, names.into_iter().collect())));
        let layouts = self
            .state_layouts
            .into_iter()
            .map(|(op, layout)| Ok((parse(&op)?, layout)));
        Ok(PlanRequest {
            device: self.device.into_core()?,
            dtype: parse(&self.dtype)?,
            state_dtype: self.state_dtype.as_deref().map(parse).transpose()?,
            page_size: self.page_size,
            phases: parse_all(&self.phases)?,
            preferences: Preferences::parse(self.preferences).map_err(raise)?,
            state_layouts: layouts.collect::<PyResult<_>>()?,
            features: features.collect::<PyResult<_>>()?,
            packages: self.packages.into_iter().collect(),
            no_decay: parse_all(&self.no_decay)?,
            measurements: measurements(self.measurements)?,
        })
    }
}

/// The core's `RoutePlan`, with the instances of the backends in it, which it owns alone.
#[pyclass(frozen, module = "switchrail._core")]
pub struct RoutePlan {
    pub core: switchrail::RoutePlan,
    runtime: Arc<switchrail::Runtime>,
    calls: Calls,
    ops: [Py<PyString>; Op::ALL.len()],
    phases: [Py<PyString>; Phase::ALL.len()],
}

#[pymethods]
impl RoutePlan {
    /// Plans on the runtime's current state. `build` is called once for each backend in the plan, with its registration
    /// and the object behind it, and returns the instance.
    #[new]
    fn new(
        runtime: &Bound<'_, Runtime>,
        layout: &Layout,
        request: &Bound<'_, PyAny>,
        build: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let (py, request, layout) = (
            runtime.py(),
            arguments::<Request>(request)?.into_core()?,
            Arc::new(layout.0.clone()),
        );
        let runtime = runtime.get();
        let (core, objects) = loop {
            let core =
                switchrail::RoutePlan::new(&runtime.core.snapshot(), Arc::clone(&layout), request.clone());
            let core = core.map_err(raise)?;
            // One that was withdrawn since the snapshot was taken has no object any more: the next snapshot lacks it.
            if let Some(objects) = core
                .backends()
                .iter()
                .map(|backend| runtime.objects.get(py, backend.id))
                .collect()
            {
                break (core, objects);
            }
        };
        Ok(Self {
            calls: Calls::build(&core, objects, build)?,
            core,
            runtime: Arc::clone(&runtime.core),
            ops: Op::ALL.map(|op| PyString::intern(py, op.name()).unbind()),
            phases: Phase::ALL.map(|phase| PyString::intern(py, phase.name()).unbind()),
        })
    }

    /// What serves a batch in a phase: of each sequence its rows, and how many tokens the cache then holds, its rows
    /// alone where that is not given.
    #[pyo3(signature = (phase, seqlens, kv_seqlens=None))]
    fn at(
        slf: &Bound<'_, Self>,
        phase: &Bound<'_, PyAny>,
        seqlens: &Bound<'_, PyAny>,
        kv_seqlens: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<BatchRoutes> {
        let plan = slf.get();
        let phase = plan.phase(phase)?;
        let tables = if plan.core.is_split(phase) {
            plan.core.select(phase, &sequences(seqlens, kv_seqlens)?)
        } else {
            plan.core.select(phase, &[])
        };
        Ok(BatchRoutes {
            plan: slf.clone().unbind(),
            tables: tables.map_err(raise)?,
        })
    }

    /// The bound method that serves an op of a layer in a phase; of several, the one for batches that are not known.
    ///
    /// The layer is given by its object, whose own `layer_id` or `layer_idx` counts, or by its id.
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
                .get(self.core.start(Op::ALL[op], Phase::ALL[phase]), id)
        {
            return Ok(call.clone_ref(py));
        }
        let (op, phase, layer) = (self.op(op)?, self.phase(phase)?, self.layer(py, layer_id, layer)?);
        self.core.lookup(layer, op, phase).map_err(raise)?;
        let call = self.calls.get(self.core.start(op, phase), layer);
        Ok(call.expect("every route has its call").clone_ref(py))
    }

    /// The instance whose method `lookup` gives.
    #[pyo3(signature = (op, phase, layer_id=None, layer=None))]
    fn backend(
        &self,
        py: Python<'_>,
        op: &Bound<'_, PyAny>,
        phase: &Bound<'_, PyAny>,
        layer_id: Option<&Bound<'_, PyAny>>,
        layer: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (op, phase, layer) = (self.op(op)?, self.phase(phase)?, self.layer(py, layer_id, layer)?);
        let id = self.core.lookup(layer, op, phase).map_err(raise)?;
        Ok(self.calls.instance(py, id))
    }

    #[getter]
    fn layout(&self) -> Layout {
        Layout(switchrail::Layout::clone(self.core.layout()))
    }

    /// Version of the state that it was made on.
    #[getter]
    fn version(&self) -> u64 {
        self.core.version()
    }

    /// The registrations that it pins.
    #[getter]
    fn backends(&self) -> Vec<Registration> {
        self.core.backends().iter().cloned().map(Registration).collect()
    }

    /// Its decisions, each with the layers that it is for.
    #[getter]
    fn routes(&self) -> Vec<Route> {
        self.core.routes().iter().cloned().map(Route).collect()
    }

    /// Its decisions alone.
    #[getter]
    fn decisions(&self) -> Vec<Decision> {
        self.core
            .routes()
            .iter()
            .map(|route| Decision(route.decision.clone()))
            .collect()
    }

    /// Every route as (layer id, op, phase, backend name), as `lookup` goes.
    #[getter]
    fn table(&self) -> Vec<(usize, &'static str, &'static str, String)> {
        self.core
            .entries()
            .map(|(layer, op, phase, id)| (layer, op.name(), phase.name(), self.name(id)))
            .collect()
    }

    /// Whether anything was committed since, so that a new plan might differ.
    fn is_stale(&self) -> bool {
        self.core.is_stale(&self.runtime)
    }

    /// Digest of its layout, its routes and the backends in it.
    #[getter]
    fn fingerprint(&self) -> String {
        let snapshot = switchrail::Snapshot::default();
        let inputs = FingerprintInputs {
            plugins: &[],
            hooks: &[],
            snapshot: &snapshot,
            plans: &[&self.core],
        };
        switchrail::Fingerprint::new(inputs).digest
    }

    /// The JSON document; it holds everything but the instances.
    fn to_json(&self) -> String {
        json::text(&self.core)
    }

    /// The document as dicts, tuples, texts and numbers.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        json::dump(py, &self.core)
    }

    fn __repr__(&self) -> String {
        format!(
            "RoutePlan(model={:?}, version={})",
            self.core.layout().model(),
            self.core.version()
        )
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.calls.traverse(visit)
    }
}

impl RoutePlan {
    /// An op, where it may not be given as the interned name.
    fn op(&self, op: &Bound<'_, PyAny>) -> PyResult<Op> {
        position(&self.ops, op).map_or_else(|| parse(&op.str()?.to_cow()?), |op| Ok(Op::ALL[op]))
    }

    /// A phase, likewise.
    fn phase(&self, phase: &Bound<'_, PyAny>) -> PyResult<Phase> {
        position(&self.phases, phase)
            .map_or_else(|| parse(&phase.str()?.to_cow()?), |phase| Ok(Phase::ALL[phase]))
    }

    /// A layer's id, where it may be given as an object's, or is not right.
    fn layer(
        &self,
        py: Python<'_>,
        layer_id: Option<&Bound<'_, PyAny>>,
        layer: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        let own = layer.map(own_id).transpose()?.flatten();
        let Some(id) = own.as_ref().or(layer_id) else {
            let (problem, found) = match layer {
                None => (
                    "neither a layer nor a layer id was given".to_owned(),
                    py.None().into_bound(py),
                ),
                Some(layer) => {
                    let problem = format!(
                        "{} has neither layer_id nor layer_idx, and no id was given",
                        layer.repr()?
                    );
                    (problem, layer.clone())
                }
            };
            return Err(refuse_id(self.core.layout(), "LayerTypeError", &problem, &found));
        };
        read_id(self.core.layout(), id)
    }

    fn name(&self, id: BackendId) -> String {
        let found = self.core.backend(id);
        found.map(|backend| backend.spec.name.clone()).unwrap_or_default()
    }
}

/// Where a name is among interned ones; none also for an equal one that is not interned.
#[inline]
fn position(names: &[Py<PyString>], name: &Bound<'_, PyAny>) -> Option<usize> {
    names.iter().position(|known| known.as_ptr() == name.as_ptr())
}

/// What of a route plan serves one batch in one phase. It reads the plan's own tables.
#[pyclass(frozen, module = "switchrail._core")]
pub struct BatchRoutes {
    plan: Py<RoutePlan>,
    tables: BatchTables,
}

#[pymethods]
impl BatchRoutes {
    #[getter]
    fn phase(&self) -> &'static str {
        self.tables.phase().name()
    }

    /// The bound method that serves an op of a layer; the layer is given as to `RoutePlan.lookup`.
    #[pyo3(signature = (op, layer_id=None, layer=None))]
    fn lookup(
        &self,
        py: Python<'_>,
        op: &Bound<'_, PyAny>,
        layer_id: Option<&Bound<'_, PyAny>>,
        layer: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let plan = self.plan.get();
        if let (Some(op), Some(id), None) = (position(&plan.ops, op), layer_id, layer)
            && id.is_exact_instance_of::<PyInt>()
            && let Ok(id) = id.extract()
            && let Some(call) = plan.calls.get(self.tables.start(Op::ALL[op]), id)
        {
            return Ok(call.clone_ref(py));
        }
        let (op, layer) = (plan.op(op)?, plan.layer(py, layer_id, layer)?);
        plan.core
            .lookup_selected(layer, op, &self.tables)
            .map_err(raise)?;
        let call = plan.calls.get(self.tables.start(op), layer);
        Ok(call.expect("every route has its call").clone_ref(py))
    }

    /// The instance whose method `lookup` gives.
    #[pyo3(signature = (op, layer_id=None, layer=None))]
    fn backend(
        &self,
        py: Python<'_>,
        op: &Bound<'_, PyAny>,
        layer_id: Option<&Bound<'_, PyAny>>,
        layer: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let plan = self.plan.get();
        let (op, layer) = (plan.op(op)?, plan.layer(py, layer_id, layer)?);
        let id = plan
            .core
            .lookup_selected(layer, op, &self.tables)
            .map_err(raise)?;
        Ok(plan.calls.instance(py, id))
    }

    /// Each instance that serves the batch, once, with its op: those that are to plan it.
    #[getter]
    fn backends(&self, py: Python<'_>) -> Vec<(&'static str, Py<PyAny>)> {
        let plan = self.plan.get();
        let mut found: Vec<(Op, BackendId)> = Vec::new();
        for (_, op, id) in plan.core.selected(&self.tables) {
            if !found.contains(&(op, id)) {
                found.push((op, id));
            }
        }
        let instance = |(op, id): (Op, _)| (op.name(), plan.calls.instance(py, id));
        found.into_iter().map(instance).collect()
    }

    /// Every route as (layer id, op, backend name).
    #[getter]
    fn table(&self) -> Vec<(usize, &'static str, String)> {
        let plan = self.plan.get();
        plan.core
            .selected(&self.tables)
            .map(|(layer, op, id)| (layer, op.name(), plan.name(id)))
            .collect()
    }

    fn __repr__(&self) -> String {
        let model = self.plan.get().core.layout().model().to_owned();
        format!("BatchRoutes(model={model:?}, phase={:?})", self.phase())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.plan)
    }
}

mirror! {
    /// A decision, and the layers that it is for.
    Route(switchrail::Route) {
        #[getter]
        fn layers(&self) -> Vec<usize> {
            self.0.layers.clone()
        }

        #[getter]
        fn decision(&self) -> Decision {
            Decision(self.0.decision.clone())
        }
    }
}
