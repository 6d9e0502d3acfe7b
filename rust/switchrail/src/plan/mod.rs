//! Which backend serves each layer of a model: decided once, read on every call.

mod document;
mod error;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
};

use serde::{Deserialize, Serialize};

pub use document::PlanDocumentError;
pub use error::{PlanError, RouteError};

use crate::{
    BackendId, Decision, Device, Dtype, HeadSize, Layer, LayerKind, Layout, Measurement, Op, Packages, Phase,
    Preferences, Query, Registration, Runtime, Snapshot,
};
use document::Document;

/// The feature that a backend of `attention` needs for layers that attend to a window.
pub const WINDOW: &str = "window";

/// What a route plan is for, besides the layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanRequest {
    /// Where the model runs.
    pub device: Device,
    /// Format of activations and of cached keys and values.
    pub dtype: Dtype,
    /// Format of the recurrent states. Asked of the linear ops only ([`Op::is_linear`]).
    #[serde(default)]
    pub state_dtype: Option<Dtype>,
    /// Tokens a page. Asked of the paged ops only ([`Op::is_paged`]).
    #[serde(default)]
    pub page_size: Option<u32>,
    /// The phases to plan, at least one.
    pub phases: BTreeSet<Phase>,
    /// The user's choices.
    #[serde(default)]
    pub preferences: Preferences,
    /// Axis order of the recurrent states, by op.
    #[serde(default)]
    pub state_layouts: BTreeMap<Op, String>,
    /// What backends must be able to do besides, by op. Layers with a window add [`WINDOW`] by themselves.
    #[serde(default)]
    pub features: BTreeMap<Op, BTreeSet<String>>,
    /// The distributions that are installed.
    #[serde(default)]
    pub packages: Packages,
    /// What calls of backends took on the device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measurements: Vec<Measurement>,
}

impl PlanRequest {
    /// A request for prefill and decode that asks for nothing but what every request must.
    #[must_use]
    pub fn new(device: Device, dtype: Dtype) -> Self {
        Self {
            device,
            dtype,
            state_dtype: None,
            page_size: None,
            phases: [Phase::Prefill, Phase::Decode].into(),
            preferences: Preferences::default(),
            state_layouts: BTreeMap::new(),
            features: BTreeMap::new(),
            packages: Packages::default(),
            measurements: Vec::new(),
        }
    }

    /// The query for one op in one kind of layer.
    fn query(&self, layout: &Layout, kind: LayerKind, op: Op, phase: Phase) -> Query {
        let shape = layout.shape(kind, op);
        let mut features = self.features.get(&op).cloned().unwrap_or_default();
        if op == Op::Attention && (kind == LayerKind::SlidingAttention || shape.window.is_some()) {
            features.insert(WINDOW.to_owned());
        }
        let mut query = Query {
            op,
            phase,
            device: self.device.clone(),
            dtype: self.dtype,
            state_dtype: self.state_dtype.filter(|_| op.is_linear()),
            head_size: shape
                .head_size_k
                .zip(shape.head_size_v)
                .map(|(k, v)| HeadSize { k, v }),
            page_size: self.page_size.filter(|_| op.is_paged()),
            state_layout: self.state_layouts.get(&op).cloned(),
            features,
            measured: BTreeMap::new(),
        };
        query.measured = Measurement::of(&query, &self.measurements);
        query
    }
}

/// The layers that one decision is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Ids of the layers, ascending.
    pub layers: Vec<usize>,
    /// Which backend serves them, and why; its query names op and phase.
    pub decision: Decision,
}

type Row = [[Option<BackendId>; Phase::ALL.len()]; Op::ALL.len()];

/// For each layer, op and phase of one model, the backend that serves it.
///
/// A plan owns what it needs: the registrations that it uses stay alive and as they were, whatever is registered,
/// configured or withdrawn later. [`RoutePlan::is_stale`] tells that something was.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "Document", into = "Document")]
pub struct RoutePlan {
    layout: Arc<Layout>,
    request: PlanRequest,
    version: u64,
    /// By layer, op and phase.
    table: Box<[Row]>,
    routes: Vec<Route>,
    /// Those that the table names, by id.
    backends: Vec<Arc<Registration>>,
    /// The state that the plan was made on, to compare with; holds no backend alive.
    snapshot: Weak<Snapshot>,
}

impl RoutePlan {
    /// Decides, for each op that each layer runs and each phase asked for, which backend serves it.
    ///
    /// # Errors
    /// [`PlanError`] where a preference can't be meant, a layer computes something that no op covers, or an op has no
    /// backend that fits; the latter names every candidate with its reasons.
    pub fn new(
        snapshot: &Arc<Snapshot>,
        layout: Arc<Layout>,
        request: PlanRequest,
    ) -> Result<Self, PlanError> {
        if request.phases.is_empty() {
            return Err(PlanError::NoPhase {
                model: layout.model().to_owned(),
            });
        }
        request.preferences.check(snapshot)?;
        let mut queries: BTreeMap<(Op, Phase, usize), (Query, Vec<usize>)> = BTreeMap::new();
        for layer in layout.layers() {
            if let Some(what) = &layer.uncovered {
                return Err(PlanError::Uncovered {
                    model: layout.model().to_owned(),
                    layer: layer.id,
                    kind: layer.kind,
                    what: what.clone(),
                });
            }
            for (op, phase) in layer
                .ops
                .iter()
                .flat_map(|op| request.phases.iter().map(|phase| (*op, *phase)))
            {
                let query = request.query(&layout, layer.kind, op, phase);
                let same = queries.range_mut((op, phase, 0)..=(op, phase, layer.id));
                if let Some((_, (_, layers))) = same.into_iter().find(|(_, (known, _))| *known == query) {
                    layers.push(layer.id);
                } else {
                    queries.insert((op, phase, layer.id), (query, vec![layer.id]));
                }
            }
        }
        let mut routes = Vec::with_capacity(queries.len());
        for (query, layers) in queries.into_values() {
            let decision = snapshot
                .resolve(&query, &request.preferences, &request.packages)
                .map_err(|source| PlanError::Unroutable {
                    model: layout.model().to_owned(),
                    kind: layout.layers()[layers[0]].kind,
                    layers: layers.clone(),
                    op: query.op,
                    phase: query.phase,
                    source: Box::new(source),
                })?;
            routes.push(Route { layers, decision });
        }
        let ids: BTreeSet<BackendId> = routes.iter().map(|route| route.decision.chosen.id).collect();
        let backends = snapshot
            .backends()
            .iter()
            .filter(|backend| ids.contains(&backend.id));
        let mut backends: Vec<Arc<Registration>> = backends.cloned().collect();
        backends.sort_by_key(|backend| backend.id);
        Ok(Self {
            table: table(&layout, &routes),
            layout,
            request,
            version: snapshot.version(),
            routes,
            backends,
            snapshot: Arc::downgrade(snapshot),
        })
    }

    /// The backend of a layer's op in a phase.
    ///
    /// # Errors
    /// [`RouteError`] for a layer that the model does not have, an op that the layer does not run, or a phase that was
    /// not planned.
    #[inline]
    pub fn lookup(&self, layer: usize, op: Op, phase: Phase) -> Result<BackendId, RouteError> {
        match self
            .table
            .get(layer)
            .and_then(|row| row[op as usize][phase as usize])
        {
            Some(id) => Ok(id),
            None => Err(self.refusal(layer, op, phase)),
        }
    }

    #[cold]
    fn refusal(&self, layer: usize, op: Op, phase: Phase) -> RouteError {
        let model = self.layout.model().to_owned();
        match self.layout.layers().get(layer) {
            None => RouteError::UnknownLayer {
                model,
                found: layer,
                layers: self.layout.layers().len(),
            },
            Some(known) if !known.ops.contains(&op) => RouteError::OtherOps {
                model,
                layer,
                kind: known.kind,
                found: op,
                valid: known.ops.clone(),
            },
            Some(_) => RouteError::PhaseNotPlanned {
                model,
                found: phase,
                valid: self.request.phases.iter().copied().collect(),
            },
        }
    }

    /// The layout that it was made for.
    #[must_use]
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// What it was made for, besides the layout.
    #[must_use]
    pub const fn request(&self) -> &PlanRequest {
        &self.request
    }

    /// Version of the snapshot that it was made on.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Its decisions, by op, phase and first layer. Layers of which the same is asked share one.
    #[must_use]
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// The registrations that it pins, by id.
    #[must_use]
    pub fn backends(&self) -> &[Arc<Registration>] {
        &self.backends
    }

    /// A registration that it pins.
    #[must_use]
    pub fn backend(&self, id: BackendId) -> Option<&Arc<Registration>> {
        self.backends
            .binary_search_by_key(&id, |backend| backend.id)
            .ok()
            .map(|index| &self.backends[index])
    }

    /// Every entry of the table: layer by layer, the ops in the order of the layer's forward, then by phase.
    pub fn entries(&self) -> impl Iterator<Item = (usize, Op, Phase, BackendId)> {
        let row = |layer: &Layer| {
            let row = &self.table[layer.id];
            let cells = layer
                .ops
                .iter()
                .flat_map(|op| Phase::ALL.map(|phase| (*op, phase)));
            let found = cells.filter_map(|(op, phase)| Some((op, phase, row[op as usize][phase as usize]?)));
            let id = layer.id;
            found
                .map(move |(op, phase, backend)| (id, op, phase, backend))
                .collect::<Vec<_>>()
        };
        self.layout.layers().iter().flat_map(row)
    }

    /// Whether the runtime has committed anything since, so that a new plan might differ.
    ///
    /// A plan that was read from a document, or made on another runtime, always is.
    #[must_use]
    pub fn is_stale(&self, runtime: &Runtime) -> bool {
        !std::ptr::eq(self.snapshot.as_ptr(), Arc::as_ptr(&runtime.snapshot()))
    }
}

/// Two plans are equal that say the same, also when one of them was read from a document.
impl PartialEq for RoutePlan {
    fn eq(&self, other: &Self) -> bool {
        (
            &self.layout,
            &self.request,
            self.version,
            &self.routes,
            &self.backends,
        ) == (
            &other.layout,
            &other.request,
            other.version,
            &other.routes,
            &other.backends,
        )
    }
}

fn table(layout: &Layout, routes: &[Route]) -> Box<[Row]> {
    let mut table = vec![Row::default(); layout.layers().len()].into_boxed_slice();
    for Route { layers, decision } in routes {
        for layer in layers {
            table[*layer][decision.query.op as usize][decision.query.phase as usize] =
                Some(decision.chosen.id);
        }
    }
    table
}
