//! Small specs, queries and layouts for the integration tests.
#![allow(dead_code, reason = "each test binary uses some of it")]

#[cfg(not(loom))]
pub mod load;
pub mod scale;

use std::sync::Arc;

use switchrail::{
    BackendId, BackendSpec, Capabilities, Config, Device, DeviceKind, DeviceSupport, Dtype, Entry, Layout,
    Load, Op, Origin, Phase, PlanRequest, Preferences, Query, Runtime, Sample,
};

/// A backend for prefill and decode on the CPU, without further restrictions.
pub fn spec(op: Op, name: &str) -> BackendSpec {
    BackendSpec {
        name: name.to_owned(),
        op,
        phases: [Phase::Prefill, Phase::Decode].into(),
        path: format!("{name}_kernels:Backend"),
        capabilities: Capabilities {
            devices: vec![DeviceSupport::any(DeviceKind::Cpu)],
            ..Capabilities::default()
        },
        priority: 0,
        config: Config::new(),
    }
}

/// A query that requires no more than [`spec`] offers.
pub fn query(op: Op) -> Query {
    Query::new(op, Phase::Decode, cpu(), Dtype::Float32)
}

pub fn cpu() -> Device {
    Device {
        kind: DeviceKind::Cpu,
        capability: None,
    }
}

pub fn plugin(distribution: &str) -> Origin {
    Origin::Plugin {
        distribution: distribution.to_owned(),
        version: Some("1.0".to_owned()),
        plugin: distribution.replace('-', "_"),
    }
}

/// Registers a backend in its own transaction.
pub fn register(runtime: &Arc<Runtime>, origin: Origin, spec: BackendSpec, overrides: bool) -> BackendId {
    let transaction = runtime.begin(origin);
    let id = transaction
        .registrar()
        .add(spec, Entry::Foreign, overrides)
        .unwrap();
    transaction.commit().unwrap();
    id
}

pub fn clear(runtime: &Arc<Runtime>, op: Op, name: &str) {
    let transaction = runtime.begin(Origin::User);
    transaction.registrar().clear(op, name, None).unwrap();
    transaction.commit().unwrap();
}

/// Configures a backend in its own transaction.
pub fn configure(runtime: &Arc<Runtime>, op: Op, name: &str, values: &serde_json::Value) {
    let transaction = runtime.begin(Origin::User);
    transaction
        .registrar()
        .configure(op, name, values.as_object().unwrap().clone())
        .unwrap();
    transaction.commit().unwrap();
}

pub fn preferences<const N: usize>(pairs: [(&str, &str); N]) -> Preferences {
    Preferences::parse(pairs).unwrap()
}

/// The layout of a Qwen3-Next model: every fourth layer has full attention, the others have gated delta.
pub fn qwen3_next(layers: usize) -> Arc<Layout> {
    let config = serde_json::json!({
        "_name_or_path": "tiny-qwen3-next",
        "model_type": "qwen3_next",
        "num_hidden_layers": layers,
        "full_attention_interval": 4,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
    });
    Arc::new(Layout::from_config(&config).unwrap())
}

/// A runtime with one backend, `torch`, for each op of [`qwen3_next`].
pub fn runtime_with_torch() -> Arc<Runtime> {
    let runtime = Runtime::new();
    for op in [Op::Attention, Op::GatedDelta, Op::ShortConv] {
        register(&runtime, Origin::Builtin, spec(op, "torch"), false);
    }
    runtime
}

pub fn request() -> PlanRequest {
    PlanRequest::new(cpu(), Dtype::Float32)
}

/// The times of calls of one load, by backend.
pub fn sample(rows: u64, length: u64, times: &[(&str, u64)]) -> Sample {
    let times = times.iter().map(|(name, time)| ((*name).to_owned(), *time));
    Sample {
        load: Load { rows, length },
        nanoseconds: times.collect(),
    }
}
