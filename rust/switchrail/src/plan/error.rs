//! Errors of making a plan, and of looking up a route in it.

use serde_json::json;

use crate::{
    LayerKind, Op, Phase, PreferenceError, ResolveError,
    error::{core_error, extended},
    layout::range,
    quoted,
};

/// Why a plan could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The request has no phase.
    #[error("a plan for {model} needs at least one phase; valid: {}", quoted(&Phase::ALL.map(Phase::name)))]
    NoPhase {
        /// The model.
        model: String,
    },
    /// A preference is invalid.
    #[error(transparent)]
    Preference(#[from] PreferenceError),
    /// A layer computes something that no op covers.
    #[error(
        "layer {layer} of {model} ({kind}) can't be routed: no op covers {what}; ops: {}",
        quoted(&Op::ALL.map(Op::name))
    )]
    Uncovered {
        /// The model.
        model: String,
        /// The first such layer.
        layer: usize,
        /// Its kind.
        kind: LayerKind,
        /// The uncovered computation.
        what: String,
    },
    /// No backend fits an op of a layer.
    #[error("{} of {model} ({kind}), {op} {phase}: {source}", named(.layers))]
    Unroutable {
        /// The model.
        model: String,
        /// The layers that need the op with these requirements.
        layers: Vec<usize>,
        /// The kind of the first of these layers.
        kind: LayerKind,
        /// The op.
        op: Op,
        /// The phase.
        phase: Phase,
        /// The rejected candidates, with their reasons.
        source: Box<ResolveError>,
    },
    /// The classes of an op's routes have too many combinations for the tables of a plan.
    #[error(
        "{op} {phase} of {model} is served by too many combinations of backends for a plan's tables; choose one backend"
    )]
    Classes {
        /// The model.
        model: String,
        /// The op.
        op: Op,
        /// The phase.
        phase: Phase,
    },
}

core_error! { PlanError {
    Self::NoPhase { model } => "plan_no_phase", json!({"model": model, "valid": Phase::ALL});
    Self::Preference(error) => error.code(), error.fields();
    Self::Uncovered { model, layer, kind, what } => "layer_uncovered",
        json!({"model": model, "layer": layer, "kind": kind, "found": what, "valid": Op::ALL});
    Self::Classes { model, op, phase } => "plan_classes", json!({"model": model, "op": op, "phase": phase});
    Self::Unroutable { model, layers, kind, op, phase, source } => match source.code() {
            "no_backend" => "layer_no_backend",
            code => code,
        },
        extended(source.fields(), json!({
            "model": model, "layers": layers, "layer_kind": kind, "op": op, "phase": phase,
        }));
} }

/// Why a lookup failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// The model has no such layer.
    #[error("{model} has no layer {found}; valid: {}", range(*.layers))]
    UnknownLayer {
        /// The model.
        model: String,
        /// The requested id.
        found: usize,
        /// Number of layers in the model.
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
        /// The requested op.
        found: Op,
        /// The ops that the layer runs.
        valid: Vec<Op>,
    },
    /// The plan does not include the phase.
    #[error("the plan for {model} was made without {found}; planned: {}", quoted(&.valid.iter().map(|phase| phase.name()).collect::<Vec<_>>()))]
    PhaseNotPlanned {
        /// The model.
        model: String,
        /// The requested phase.
        found: Phase,
        /// The planned phases.
        valid: Vec<Phase>,
    },
}

/// Ascending layer ids in short form: `layers 0-2, 4`.
fn named(layers: &[usize]) -> String {
    let runs: Vec<String> = layers
        .chunk_by(|id, next| id + 1 == *next)
        .map(|run| match run {
            [first, .., last] => format!("{first}-{last}"),
            _ => run[0].to_string(),
        })
        .collect();
    let word = if layers.len() == 1 { "layer" } else { "layers" };
    format!("{word} {}", runs.join(", "))
}

fn ops(ops: &[Op]) -> String {
    match ops {
        [] => "no op".to_owned(),
        ops => quoted(&ops.iter().map(|op| op.name()).collect::<Vec<_>>()),
    }
}

core_error! { RouteError {
    Self::UnknownLayer { model, found, layers } => "route_unknown_layer",
        json!({"model": model, "found": found, "layers": layers});
    Self::OtherOps { model, layer, kind, found, valid } => "route_other_ops",
        json!({"model": model, "layer": layer, "kind": kind, "found": found, "valid": valid});
    Self::PhaseNotPlanned { model, found, valid } => "route_phase_not_planned",
        json!({"model": model, "found": found, "valid": valid});
} }
