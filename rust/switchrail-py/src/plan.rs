//! Mirror of the core's `plan`: route plans, which are pure data.

use std::{collections::BTreeMap, str::FromStr, sync::Arc};

use pyo3::prelude::*;
use switchrail::{BackendId, CoreError, FingerprintInputs, PlanRequest, Preferences};

use crate::{
    backend::Registration,
    discovery::Discovery,
    errors::{arguments, raise},
    exception::let_pass_interrupts,
    json,
    layout::{Layout, read_id, refuse_id},
    mirror::mirror,
    objects::own_id,
    op::{DeviceForm, parse, parse_all},
    registry::Runtime,
    resolve::{Decision, Measurement, measurements},
    text::{Text, described},
};

/// A `PlanRequest` in the form in which `switchrail.runtime` passes it.
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
    installed: Py<Discovery>,
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
            packages: self.installed.get().0.packages(),
            no_decay: parse_all(&self.no_decay)?,
            measurements: measurements(self.measurements)?,
        })
    }
}

/// The core's `RoutePlan`. It is pure data; a `BoundPlan` holds instances that can be called.
#[pyclass(frozen, module = "switchrail._core")]
pub struct RoutePlan {
    pub core: switchrail::RoutePlan,
}

#[pymethods]
impl RoutePlan {
    /// Makes a plan for the runtime's current state.
    #[new]
    fn new(runtime: &Runtime, layout: &Layout, request: &Bound<'_, PyAny>) -> PyResult<Self> {
        let request = arguments::<Request>(request)?.into_core()?;
        let layout = Arc::new(layout.0.clone());
        let core = switchrail::RoutePlan::new(&runtime.core.snapshot(), layout, request).map_err(raise)?;
        Ok(Self { core })
    }

    /// The registration that serves an op of a layer in a phase. If there are several, the registration for
    /// batches of unknown size.
    ///
    /// The layer is given by its id or as an object. The `layer_id` or `layer_idx` of an object takes
    /// precedence.
    #[pyo3(signature = (op, phase, layer_id=None, layer=None))]
    fn lookup(
        &self,
        py: Python<'_>,
        op: &Bound<'_, PyAny>,
        phase: &Bound<'_, PyAny>,
        layer_id: Option<&Bound<'_, PyAny>>,
        layer: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Registration> {
        let layer = layer_of(py, self.core.layout(), layer_id, layer)?;
        let id = self.core.lookup(layer, parse_any(op)?, parse_any(phase)?);
        let found = self.core.backend(id.map_err(raise)?);
        Ok(Registration(Arc::clone(found.expect("a plan pins what serves"))))
    }

    #[getter]
    fn layout(&self) -> Layout {
        Layout(switchrail::Layout::clone(self.core.layout()))
    }

    /// Version of the registry's snapshot that the plan was made from.
    #[getter]
    fn version(&self) -> u64 {
        self.core.version()
    }

    /// The registrations that the plan pins.
    #[getter]
    fn backends(&self) -> Vec<Registration> {
        self.core.backends().iter().cloned().map(Registration).collect()
    }

    /// The plan's decisions, each with its layers.
    #[getter]
    fn routes(&self) -> Vec<Route> {
        self.core.routes().iter().cloned().map(Route).collect()
    }

    /// The plan's decisions, without layers.
    #[getter]
    fn decisions(&self) -> Vec<Decision> {
        self.core
            .routes()
            .iter()
            .map(|route| Decision(route.decision.clone()))
            .collect()
    }

    /// All routes as (layer id, op, phase, backend name), consistent with `lookup`.
    #[getter]
    fn table(&self) -> Vec<(usize, &'static str, &'static str, String)> {
        self.core
            .entries()
            .map(|(layer, op, phase, id)| (layer, op.name(), phase.name(), self.name(id)))
            .collect()
    }

    /// Digest of the plan's layout, its routes and their backends.
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

    /// The plan as a JSON document.
    fn to_json(&self) -> String {
        json::text(&self.core)
    }

    /// The plan in a document that `to_json` wrote.
    #[staticmethod]
    fn from_json(text: &str) -> PyResult<Self> {
        json::parse("RoutePlan", text).map(|core| Self { core })
    }

    /// The document as a dict. JSON's arrays become tuples.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        json::dump(py, &self.core)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        Ok((slf.get_type().getattr("from_json")?, (slf.get().to_json(),)))
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other
            .cast::<Self>()
            .is_ok_and(|other| other.get().core == self.core)
    }

    fn __hash__(&self) -> u64 {
        json::hash(&self.core)
    }

    fn __repr__(&self) -> String {
        format!(
            "RoutePlan(model={:?}, version={})",
            self.core.layout().model(),
            self.core.version()
        )
    }
}

impl RoutePlan {
    /// The name of one of the plan's backends.
    pub fn name(&self, id: BackendId) -> String {
        let found = self.core.backend(id);
        found.map(|backend| backend.spec.name.clone()).unwrap_or_default()
    }
}

/// Parses an argument that names a value of the core.
pub fn parse_any<T: FromStr<Err: CoreError>>(name: &Bound<'_, PyAny>) -> PyResult<T> {
    match name.extract() {
        Ok(Text(text)) => parse(&text),
        Err(error) => {
            let_pass_interrupts(name.py(), error)?;
            parse(&described(name)?)
        }
    }
}

/// The id of a layer that is given as an object or by its id.
pub fn layer_of(
    py: Python<'_>,
    layout: &switchrail::Layout,
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
                    described(layer)?
                );
                (problem, layer.clone())
            }
        };
        return Err(refuse_id(layout, "LayerTypeError", &problem, &found));
    };
    read_id(layout, id)
}

mirror! {
    /// A decision, and the layers that it applies to.
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
