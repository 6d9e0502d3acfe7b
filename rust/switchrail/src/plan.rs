//! Which backend serves each layer of a model: decided once, read on every call.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
};

use serde::{Deserialize, Serialize};

use crate::{
    BackendId, CoreError, Decision, Device, Dtype, HeadSize, Layer, LayerKind, Layout, Op, Packages, Phase,
    PreferenceError, Preferences, Query, Registration, ResolveError, Runtime, Schema, Snapshot,
};

/// The feature that a backend of `attention` needs for layers that attend to a window.
pub const SLIDING_WINDOW: &str = "sliding_window";

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
    /// What backends must be able to do besides, by op. Layers with a window add [`SLIDING_WINDOW`] by themselves.
    #[serde(default)]
    pub features: BTreeMap<Op, BTreeSet<String>>,
    /// The distributions that are installed.
    #[serde(default)]
    pub packages: Packages,
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
        }
    }

    /// The query for one op in one kind of layer.
    fn query(&self, layout: &Layout, kind: LayerKind, op: Op, phase: Phase) -> Query {
        let shape = layout.shape(kind, op);
        let mut features = self.features.get(&op).cloned().unwrap_or_default();
        if op == Op::Attention && (kind == LayerKind::SlidingAttention || shape.window.is_some()) {
            features.insert(SLIDING_WINDOW.to_owned());
        }
        Query {
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
        }
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

/// The JSON form of a [`RoutePlan`].
#[derive(Serialize, Deserialize)]
struct Document {
    schema: Schema,
    version: u64,
    layout: Layout,
    request: PlanRequest,
    backends: Vec<Arc<Registration>>,
    routes: Vec<Route>,
}

impl From<RoutePlan> for Document {
    fn from(plan: RoutePlan) -> Self {
        Self {
            schema: Schema,
            version: plan.version,
            layout: Arc::unwrap_or_clone(plan.layout),
            request: plan.request,
            backends: plan.backends,
            routes: plan.routes,
        }
    }
}

impl TryFrom<Document> for RoutePlan {
    type Error = PlanDocumentError;

    fn try_from(document: Document) -> Result<Self, PlanDocumentError> {
        let Document {
            schema: Schema,
            version,
            layout,
            request,
            mut backends,
            routes,
        } = document;
        backends.sort_by_key(|backend| backend.id);
        for Route { layers, decision } in &routes {
            let (op, id) = (decision.query.op, decision.chosen.id);
            if let Some(layer) = layers.iter().find(|layer| {
                layout
                    .layers()
                    .get(**layer)
                    .is_none_or(|known| !known.ops.contains(&op))
            }) {
                return Err(PlanDocumentError::Layer { layer: *layer, op });
            }
            if backends.binary_search_by_key(&id, |backend| backend.id).is_err() {
                return Err(PlanDocumentError::Backend { id });
            }
        }
        Ok(Self {
            table: table(&layout, &routes),
            layout: Arc::new(layout),
            request,
            version,
            routes,
            backends,
            snapshot: Weak::new(),
        })
    }
}

/// A document that is no route plan, though each of its parts can be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanDocumentError {
    /// A route is for a layer that the layout does not have, or that does not run the op.
    #[error("a route of {op} is for layer {layer}, which does not run it")]
    Layer {
        /// The layer.
        layer: usize,
        /// The route's op.
        op: Op,
    },
    /// A route leads to a backend that is not in the document.
    #[error("a route leads to backend {id}, which the document does not hold")]
    Backend {
        /// The backend.
        id: BackendId,
    },
}

impl CoreError for PlanDocumentError {
    fn code(&self) -> &'static str {
        match self {
            Self::Layer { .. } => "plan_document_layer",
            Self::Backend { .. } => "plan_document_backend",
        }
    }

    fn fields(&self) -> serde_json::Value {
        match self {
            Self::Layer { layer, op } => serde_json::json!({"found": layer, "op": op}),
            Self::Backend { id } => serde_json::json!({"found": id}),
        }
    }
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// No phase was asked for.
    #[error("a plan for {model} needs at least one phase: prefill, decode, verify")]
    NoPhase {
        /// The model.
        model: String,
    },
    /// A preference can't be meant.
    #[error(transparent)]
    Preference(#[from] PreferenceError),
    /// A layer computes something that no op covers.
    #[error(
        "layer {layer} of {model} ({kind}) can't be routed: no op covers {what}; ops: {}",
        quoted_ops()
    )]
    Uncovered {
        /// The model.
        model: String,
        /// The first such layer.
        layer: usize,
        /// Its kind.
        kind: LayerKind,
        /// What is not covered.
        what: String,
    },
    /// An op of a layer has no backend.
    #[error("layer {} of {model} ({kind}), {op} {phase}: {source}", .layers[0])]
    Unroutable {
        /// The model.
        model: String,
        /// Every layer that it is true of.
        layers: Vec<usize>,
        /// The kind of the first of them.
        kind: LayerKind,
        /// The op.
        op: Op,
        /// The phase.
        phase: Phase,
        /// Why, with every candidate's reasons.
        source: Box<ResolveError>,
    },
}

fn quoted_ops() -> String {
    crate::quoted(&Op::ALL.map(Op::name))
}

impl CoreError for PlanError {
    fn code(&self) -> &'static str {
        match self {
            Self::NoPhase { .. } => "plan_no_phase",
            Self::Preference(error) => error.code(),
            Self::Uncovered { .. } => "layer_uncovered",
            Self::Unroutable { source, .. } => match source.code() {
                "no_backend" => "layer_no_backend",
                code => code,
            },
        }
    }

    fn fields(&self) -> serde_json::Value {
        match self {
            Self::NoPhase { model } => serde_json::json!({"model": model, "valid": Phase::ALL}),
            Self::Preference(error) => error.fields(),
            Self::Uncovered {
                model,
                layer,
                kind,
                what,
            } => serde_json::json!({
                "model": model, "layer": layer, "kind": kind, "found": what, "valid": Op::ALL,
            }),
            Self::Unroutable {
                model,
                layers,
                kind,
                op,
                phase,
                source,
            } => {
                let mut fields = source.fields();
                fields["model"] = model.as_str().into();
                fields["layers"] = layers.as_slice().into();
                fields["layer_kind"] = kind.as_str().into();
                fields["op"] = op.name().into();
                fields["phase"] = phase.name().into();
                fields
            }
        }
    }
}

/// Why a lookup has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// The model has no such layer.
    #[error("{model} has no layer {found}; valid: {}", range(*.layers))]
    UnknownLayer {
        /// The model.
        model: String,
        /// The id that was asked for.
        found: usize,
        /// How many layers there are.
        layers: usize,
    },
    /// The layer does not run the op.
    #[error("layer {layer} of {model} ({kind}) does not run {found}; it runs {}", ops(.valid))]
    OtherOps {
        /// The model.
        model: String,
        /// The layer.
        layer: usize,
        /// Its kind.
        kind: LayerKind,
        /// The op that was asked for.
        found: Op,
        /// The ops that the layer runs.
        valid: Vec<Op>,
    },
    /// The plan was made without the phase.
    #[error("the plan for {model} was made without {found}; planned: {}", crate::quoted(&.valid.iter().map(|phase| phase.name()).collect::<Vec<_>>()))]
    PhaseNotPlanned {
        /// The model.
        model: String,
        /// The phase that was asked for.
        found: Phase,
        /// Those that were planned.
        valid: Vec<Phase>,
    },
}

fn range(layers: usize) -> String {
    match layers {
        0 => "none, it has no layers".to_owned(),
        layers => format!("0 to {}", layers - 1),
    }
}

fn ops(ops: &[Op]) -> String {
    match ops {
        [] => "no op".to_owned(),
        ops => crate::quoted(&ops.iter().map(|op| op.name()).collect::<Vec<_>>()),
    }
}

impl CoreError for RouteError {
    fn code(&self) -> &'static str {
        match self {
            Self::UnknownLayer { .. } => "route_unknown_layer",
            Self::OtherOps { .. } => "route_other_ops",
            Self::PhaseNotPlanned { .. } => "route_phase_not_planned",
        }
    }

    fn fields(&self) -> serde_json::Value {
        match self {
            Self::UnknownLayer { model, found, layers } => {
                serde_json::json!({"model": model, "found": found, "layers": layers})
            }
            Self::OtherOps {
                model,
                layer,
                kind,
                found,
                valid,
            } => {
                serde_json::json!({"model": model, "layer": layer, "kind": kind, "found": found, "valid": valid})
            }
            Self::PhaseNotPlanned { model, found, valid } => {
                serde_json::json!({"model": model, "found": found, "valid": valid})
            }
        }
    }
}
