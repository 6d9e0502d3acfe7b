//! Route plans: which backend serves each layer of a model, decided once and read on each call.

mod bind;
mod document;
mod error;
mod shared;
mod tables;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
};

use serde::{Deserialize, Serialize};

pub use bind::BindError;
pub use document::PlanDocumentError;
pub use error::{PlanError, RouteError};
pub use tables::BatchTables;

use crate::{
    BackendId, Decision, Device, Dtype, HeadCount, HeadSize, LayerKind, Layout, Measurement, Op, Packages,
    Phase, Preferences, Query, Registration, Runtime, Snapshot,
};
use document::Document;
use tables::Tables;

/// The feature that a backend of `attention` needs for layers with a sliding window.
pub const WINDOW: &str = "window";

/// The feature that a backend of `attention` needs for layers with capped logits.
pub const SOFT_CAP: &str = "soft_cap";

/// The feature that a backend of `attention` needs for layers with attention sinks.
pub const SINKS: &str = "sinks";

/// The request for a route plan: all inputs of a plan besides the layout and the registered backends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanRequest {
    /// The device that the model runs on.
    pub device: Device,
    /// Dtype of activations and of cached keys and values.
    pub dtype: Dtype,
    /// Dtype of the recurrent states. Applies only to the linear ops ([`Op::is_linear`]).
    #[serde(default)]
    pub state_dtype: Option<Dtype>,
    /// Tokens per page. Applies only to the paged ops ([`Op::is_paged`]).
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
    /// The features that backends must have, by op. [`WINDOW`], [`SOFT_CAP`] and [`SINKS`] are added for
    /// the layers that need them.
    #[serde(default)]
    pub features: BTreeMap<Op, BTreeSet<String>>,
    /// The installed distributions.
    #[serde(default)]
    pub packages: Packages,
    /// The ops whose states never decay in this model (all gates are 0).
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub no_decay: BTreeSet<Op>,
    /// Measured times of backend calls on the device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measurements: Vec<Measurement>,
}

impl PlanRequest {
    /// A request for prefill and decode with the required fields only.
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
            no_decay: BTreeSet::new(),
            measurements: Vec::new(),
        }
    }

    /// The query for one op in one kind of layer and one phase.
    fn query(&self, layout: &Layout, kind: LayerKind, op: Op, phase: Phase) -> Query {
        let shape = layout.shape(kind, op);
        let mut features = self.features.get(&op).cloned().unwrap_or_default();
        let has_window = kind == LayerKind::SlidingAttention || shape.window.is_some();
        for (feature, is_needed) in [
            (WINDOW, op == Op::Attention && has_window),
            (SOFT_CAP, shape.soft_cap),
            (SINKS, shape.sinks),
        ] {
            if is_needed {
                features.insert(feature.to_owned());
            }
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
            heads: shape.q_heads.zip(shape.v_heads).map(|(q, v)| HeadCount(q, v)),
            no_decay: self.no_decay.contains(&op),
            window: shape.window.filter(|_| op == Op::Attention),
            measured: Vec::new(),
        };
        query.measured = Measurement::of(&query, &self.measurements);
        query
    }
}

/// Layers that share one decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Ids of the layers, ascending.
    pub layers: Vec<usize>,
    /// The backend that serves the layers, and the reason. The decision's query has the op and the phase.
    pub decision: Decision,
}

/// The backend for each layer, op and phase of one model; or several backends, each for a class of batches.
///
/// All backends of an op in a plan use the same form of state or cache, because they share the memory.
///
/// A plan has its own copy of the registrations that it uses, so later changes of the registry do not affect
/// it. [`RoutePlan::is_stale`] tells whether there were such changes.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "Document", into = "Document")]
pub struct RoutePlan {
    layout: Arc<Layout>,
    request: PlanRequest,
    version: u64,
    tables: Tables,
    routes: Vec<Route>,
    /// The registrations in the tables, by id.
    backends: Vec<Arc<Registration>>,
    /// The snapshot that the plan was made from, for [`RoutePlan::is_stale`]; it keeps no backend alive.
    snapshot: Weak<Snapshot>,
}

impl RoutePlan {
    /// Decides which backend serves each op of each layer in each requested phase.
    ///
    /// # Errors
    /// [`PlanError`]. If no backend fits an op of a layer, the error names every candidate with the reasons
    /// against it.
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
        let mut asked: BTreeMap<Op, Vec<(Query, Vec<usize>)>> = BTreeMap::new();
        for (query, layers) in queries.into_values() {
            asked.entry(query.op).or_default().push((query, layers));
        }
        let mut routes = Vec::new();
        for asked in asked.into_values() {
            routes.extend(shared::resolve(snapshot, &layout, &request, &asked)?);
        }
        let ids: BTreeSet<BackendId> = routes
            .iter()
            .flat_map(|route| route.decision.serving().iter().map(|backend| backend.id))
            .collect();
        let backends = snapshot
            .backends()
            .iter()
            .filter(|backend| ids.contains(&backend.id));
        let mut backends: Vec<Arc<Registration>> = backends.cloned().collect();
        backends.sort_by_key(|backend| backend.id);
        let tables = Tables::new(&layout, &routes).map_err(|(op, phase)| PlanError::Classes {
            model: layout.model().to_owned(),
            op,
            phase,
        })?;
        Ok(Self {
            tables,
            layout,
            request,
            version: snapshot.version(),
            routes,
            backends,
            snapshot: Arc::downgrade(snapshot),
        })
    }

    /// The backend for a layer's op in a phase; if there are several, the one for batches of unknown size.
    ///
    /// # Errors
    /// [`RouteError`] for an unknown layer, an op that the layer does not run, or a phase that was not
    /// planned.
    #[inline]
    pub fn lookup(&self, layer: usize, op: Op, phase: Phase) -> Result<BackendId, RouteError> {
        self.look_up(layer, op, phase, self.tables.start(op, phase))
    }

    /// The tables for a batch in a phase. For each sequence, `sequences` has the number of rows (new tokens) and
    /// the number of tokens in the cache after the call.
    ///
    /// # Errors
    /// [`RouteError`] for a phase that was not planned.
    pub fn select(&self, phase: Phase, sequences: &[(u64, u64)]) -> Result<BatchTables, RouteError> {
        if !self.request.phases.contains(&phase) {
            return Err(self.not_planned(phase));
        }
        Ok(self.tables.select(&self.routes, phase, sequences))
    }

    /// Whether different batches in a phase can get different backends. If not, [`RoutePlan::select`] returns the
    /// same tables for every batch.
    #[must_use]
    pub fn is_split(&self, phase: Phase) -> bool {
        let mut decisions = self.routes.iter().map(|route| &route.decision);
        decisions.any(|decision| decision.query.phase == phase && decision.classes.is_some())
    }

    /// The backend for a layer's op and a batch.
    ///
    /// # Errors
    /// Those of [`RoutePlan::lookup`].
    #[inline]
    pub fn lookup_selected(
        &self,
        layer: usize,
        op: Op,
        selection: &BatchTables,
    ) -> Result<BackendId, RouteError> {
        self.look_up(layer, op, selection.phase(), selection.start(op))
    }

    #[inline]
    fn look_up(&self, layer: usize, op: Op, phase: Phase, start: usize) -> Result<BackendId, RouteError> {
        self.tables
            .get(start, layer)
            .ok_or_else(|| self.refusal(layer, op, phase))
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
            Some(_) => self.not_planned(phase),
        }
    }

    fn not_planned(&self, phase: Phase) -> RouteError {
        RouteError::PhaseNotPlanned {
            model: self.layout.model().to_owned(),
            found: phase,
            valid: self.request.phases.iter().copied().collect(),
        }
    }

    /// The layout that the plan was made for.
    #[must_use]
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// The request that the plan was made for.
    #[must_use]
    pub const fn request(&self) -> &PlanRequest {
        &self.request
    }

    /// Version of the snapshot that the plan was made from.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// The plan's decisions, sorted by op, phase and first layer. Layers with equal queries share a decision.
    #[must_use]
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// The registrations that the plan pins, sorted by id.
    #[must_use]
    pub fn backends(&self) -> &[Arc<Registration>] {
        &self.backends
    }

    /// A registration that the plan pins.
    #[must_use]
    pub fn backend(&self, id: BackendId) -> Option<&Arc<Registration>> {
        self.backends
            .binary_search_by_key(&id, |backend| backend.id)
            .ok()
            .map(|index| &self.backends[index])
    }

    /// The backend for every layer, op and phase, as in [`RoutePlan::lookup`]: layer by layer, the ops in the
    /// order of the layer's forward, then by phase.
    pub fn entries(&self) -> impl Iterator<Item = (usize, Op, Phase, BackendId)> {
        let cells = self.layout.layers().iter().flat_map(|layer| {
            let ops = layer.ops.iter();
            ops.flat_map(|op| Phase::ALL.map(|phase| (layer.id, *op, phase)))
        });
        cells.filter_map(|(layer, op, phase)| {
            let id = self.tables.get(self.tables.start(op, phase), layer)?;
            Some((layer, op, phase, id))
        })
    }

    /// The backend for every layer and op, as in [`RoutePlan::lookup_selected`], in the order of
    /// [`RoutePlan::entries`].
    pub fn selected<'a>(
        &'a self,
        selection: &'a BatchTables,
    ) -> impl Iterator<Item = (usize, Op, BackendId)> + 'a {
        let layers = self.layout.layers().iter();
        let cells = layers.flat_map(|layer| layer.ops.iter().map(|op| (layer.id, *op)));
        cells.filter_map(|(layer, op)| Some((layer, op, self.tables.get(selection.start(op), layer)?)))
    }

    /// The index in [`RoutePlan::cells`] of the table that [`RoutePlan::lookup`] reads for an op in a phase.
    /// A host that keeps its own values per route can store them at the same indices.
    #[inline]
    #[must_use]
    pub fn start(&self, op: Op, phase: Phase) -> usize {
        self.tables.start(op, phase)
    }

    /// All tables, one after the other. The backend of a layer is at the table's start plus the layer's id.
    #[must_use]
    pub fn cells(&self) -> &[Option<BackendId>] {
        self.tables.cells()
    }

    /// Whether the runtime has committed a change since the plan was made, so that a new plan might differ.
    ///
    /// A plan that was read from a document, or made on another runtime, is always stale.
    #[must_use]
    pub fn is_stale(&self, runtime: &Runtime) -> bool {
        !std::ptr::eq(self.snapshot.as_ptr(), Arc::as_ptr(&runtime.snapshot()))
    }
}

/// Compares contents: a plan equals a copy of it that was read from a document.
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
