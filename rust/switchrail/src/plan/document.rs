//! The JSON form of a route plan.

use std::{
    collections::BTreeSet,
    sync::{Arc, Weak},
};

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{PlanRequest, Route, RoutePlan, tables::Tables};
use crate::{BackendId, Layout, Op, Phase, Registration, Schema, error::core_error};

/// The JSON form of a [`RoutePlan`].
#[derive(Serialize, Deserialize)]
pub(super) struct Document {
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
        let mut served = BTreeSet::new();
        for Route { layers, decision } in &routes {
            let (op, phase) = (decision.query.op, decision.query.phase);
            if let Some(layer) = layers.iter().find(|layer| {
                layout
                    .layers()
                    .get(**layer)
                    .is_none_or(|known| !known.ops.contains(&op))
            }) {
                return Err(PlanDocumentError::Layer { layer: *layer, op });
            }
            if let Some(layer) = layers.iter().find(|layer| !served.insert((op, phase, **layer))) {
                return Err(PlanDocumentError::Twice {
                    layer: *layer,
                    op,
                    phase,
                });
            }
            let known = |id: BackendId| backends.binary_search_by_key(&id, |backend| backend.id).is_ok();
            if let Some(missing) = decision.serving().iter().find(|backend| !known(backend.id)) {
                return Err(PlanDocumentError::Backend { id: missing.id });
            }
        }
        let tables =
            Tables::new(&layout, &routes).map_err(|(op, phase)| PlanDocumentError::Classes { op, phase })?;
        for layer in layout.layers() {
            for op in &layer.ops {
                let missing = |phase: &&Phase| tables.get(tables.start(*op, **phase), layer.id).is_none();
                if let Some(phase) = request.phases.iter().find(missing) {
                    return Err(PlanDocumentError::Missing {
                        layer: layer.id,
                        op: *op,
                        phase: *phase,
                    });
                }
            }
        }
        Ok(Self {
            tables,
            layout: Arc::new(layout),
            request,
            version,
            routes,
            backends,
            snapshot: Weak::new(),
        })
    }
}

/// Why a document is not a route plan, although all of its parts can be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanDocumentError {
    /// A route names a layer that the layout does not have or that does not run the route's op.
    #[error("a route of {op} is for layer {layer}, which does not run {op}")]
    Layer {
        /// The layer.
        layer: usize,
        /// The route's op.
        op: Op,
    },
    /// A route names a backend that is not in the document.
    #[error("a route names backend {id}, which is not in the document")]
    Backend {
        /// The backend.
        id: BackendId,
    },
    /// No route covers a layer, op and phase that the plan was requested for.
    #[error("layer {layer} runs {op}, but no route serves it in {phase}")]
    Missing {
        /// The layer.
        layer: usize,
        /// An op that the layer runs.
        op: Op,
        /// A requested phase.
        phase: Phase,
    },
    /// Two routes cover the same layer, op and phase.
    #[error("layer {layer} has two routes of {op} in {phase}")]
    Twice {
        /// The layer.
        layer: usize,
        /// The op.
        op: Op,
        /// The phase.
        phase: Phase,
    },
    /// The classes of an op's routes have too many combinations for the tables of a plan.
    #[error("the classes of {op} in {phase} have too many combinations")]
    Classes {
        /// The op.
        op: Op,
        /// The phase.
        phase: Phase,
    },
}

core_error! { PlanDocumentError {
    Self::Layer { layer, op } => "plan_document_layer", json!({"found": layer, "op": op});
    Self::Backend { id } => "plan_document_backend", json!({"found": id});
    Self::Missing { layer, op, phase } => "plan_document_missing", json!({"layer": layer, "op": op, "phase": phase});
    Self::Twice { layer, op, phase } => "plan_document_twice", json!({"layer": layer, "op": op, "phase": phase});
    Self::Classes { op, phase } => "plan_document_classes", json!({"op": op, "phase": phase});
} }
