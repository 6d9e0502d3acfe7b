//! A digest of a process's plugins, hooks, backends and route plans.

use std::{
    collections::BTreeSet,
    fmt::{self, Write as _},
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{
    BackendSpec, Op, Phase, PluginRecord, PluginState, Registration, Route, RoutePlan, Schema, Snapshot,
};

/// The hooks of one target, in the order in which they run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookChain {
    /// The hooked target, such as `module:function`.
    pub target: String,
    /// The hooks, named by the host. A name must contain everything that distinguishes a hook from others.
    pub hooks: Vec<String>,
}

/// The inputs of a fingerprint.
#[derive(Debug, Clone, Copy)]
pub struct FingerprintInputs<'a> {
    /// The plugins. Only loaded ones are included, with name, group, target, distribution and version, but
    /// without their paths.
    pub plugins: &'a [PluginRecord],
    /// The hooks of each target. The order of hooks matters, the order of targets does not.
    pub hooks: &'a [HookChain],
    /// The active backends, with their specs, origins, configurations and active phases, but without ids and
    /// the order of registration.
    pub snapshot: &'a Snapshot,
    /// The route plans in use, with model type, layer kinds, routes and pinned backends. The model's name is
    /// not included, because it is usually a folder's name.
    pub plans: &'a [&'a RoutePlan],
}

/// A digest of the inputs and of Switchrail's version. It does not depend on machine, process, or order of
/// installation, loading and registration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    schema: Schema,
    /// SHA-256 of the inputs' canonical JSON, in hexadecimal.
    pub digest: String,
    /// The digested document, to find where two fingerprints differ.
    pub inputs: Value,
}

impl Fingerprint {
    /// Digests the inputs.
    #[must_use]
    pub fn new(inputs: FingerprintInputs<'_>) -> Self {
        let loaded = inputs
            .plugins
            .iter()
            .filter(|plugin| plugin.state == PluginState::Loaded);
        let plugins = loaded.map(|plugin| {
            json!({
                "name": plugin.name,
                "group": plugin.group,
                "target": plugin.target,
                "distribution": plugin.origin.distribution,
                "version": plugin.origin.version,
            })
        });
        let active = Op::ALL.into_iter().flat_map(|op| inputs.snapshot.of_op(op));
        let active = active.map(|backend| {
            let BackendSpec { op, name, phases, .. } = &backend.spec;
            let is_active = |phase: &&Phase| {
                let found = inputs.snapshot.active(*op, name, **phase);
                found.is_some_and(|found| found.id == backend.id)
            };
            backend_json(backend, &phases.iter().filter(is_active).copied().collect())
        });
        let inputs = json!({
            "switchrail": env!("CARGO_PKG_VERSION"),
            "plugins": sorted(plugins),
            "hooks": sorted(inputs.hooks.iter().map(|chain| json!({"target": chain.target, "hooks": chain.hooks}))),
            "backends": sorted(active),
            "plans": sorted(inputs.plans.iter().map(|plan| plan_json(plan))),
        });
        let mut text = String::new();
        canonical(&inputs, &mut text);
        Self {
            schema: Schema,
            digest: hexadecimal(&Sha256::digest(text.as_bytes())),
            inputs,
        }
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.digest)
    }
}

/// The digest in hexadecimal, as written in documents.
pub(crate) fn hexadecimal(digest: &[u8]) -> String {
    digest.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The backend as JSON. `phases` are those in which it is active (for a plan's backend: in which it serves).
fn backend_json(backend: &Registration, phases: &BTreeSet<Phase>) -> Value {
    json!({
        "origin": backend.origin,
        "spec": backend.spec,
        "config": backend.effective_config(),
        "active": phases,
    })
}

fn plan_json(plan: &RoutePlan) -> Value {
    let name = |id| plan.backend(id).map(|backend| backend.spec.name.as_str());
    let backends = plan.backends().iter().map(|backend| {
        let decisions = plan.routes().iter().map(|route| &route.decision);
        let its = decisions.filter(|decision| decision.serving().iter().any(|other| other.id == backend.id));
        backend_json(backend, &its.map(|decision| decision.query.phase).collect())
    });
    json!({
        "model_type": plan.layout().model_type(),
        "layers": plan.layout().layers().iter().map(|layer| layer.kind).collect::<Vec<_>>(),
        "routes": plan.entries().map(|(layer, op, phase, id)| json!([layer, op, phase, name(id)])).collect::<Vec<_>>(),
        "classes": plan.routes().iter().filter_map(classes_json).collect::<Vec<_>>(),
        "backends": sorted(backends),
    })
}

/// The backends for a route's classes of batches, without the measured times. `None` if one backend serves all
/// batches.
fn classes_json(route: &Route) -> Option<Value> {
    let classes = route.decision.classes.as_ref()?;
    let query = &route.decision.query;
    Some(json!({
        "layers": route.layers,
        "op": query.op,
        "phase": query.phase,
        "window": query.window,
        "backends": classes.backends().iter().map(|backend| &backend.name).collect::<Vec<_>>(),
        "bands": classes.bands(),
    }))
}

/// The values, sorted by their canonical JSON.
fn sorted(values: impl Iterator<Item = Value>) -> Vec<Value> {
    let mut values: Vec<(String, Value)> = values
        .map(|value| {
            let mut text = String::new();
            canonical(&value, &mut text);
            (text, value)
        })
        .collect();
    values.sort_by(|a, b| a.0.cmp(&b.0));
    values.into_iter().map(|(_, value)| value).collect()
}

/// Writes JSON with sorted keys and without spaces.
fn canonical(value: &Value, text: &mut String) {
    match value {
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                canonical(item, text);
            }
            text.push(']');
        }
        Value::Object(map) => {
            let mut fields: Vec<_> = map.iter().collect();
            fields.sort_by_key(|(key, _)| *key);
            text.push('{');
            for (index, (key, item)) in fields.into_iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                text.push_str(&Value::from(key.as_str()).to_string());
                text.push(':');
                canonical(item, text);
            }
            text.push('}');
        }
        scalar => text.push_str(&scalar.to_string()),
    }
}
