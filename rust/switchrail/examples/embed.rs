//! A Rust service with its own kernels. It registers them, plans a Qwen3-Next model, and calls the backend of
//! each layer. Python is not involved.
//!
//! ```text
//! cargo run --example embed [CONFIG_JSON]
//! ```
#![allow(missing_docs, reason = "a program has no API")]

use std::{error::Error, process::ExitCode, sync::Arc};

use serde_json::{Value, json};
use switchrail::{
    BackendSpec, Capabilities, Config, CoreError, Device, DeviceKind, DeviceSupport, Dtype, Entry, Layout,
    NativeBackend, Op, Origin, Phase, PlanRequest, Preferences, RoutePlan, Runtime,
};

/// The service's own backend, which [`Entry::native`] returns: the gated delta rule for one head, token by
/// token.
#[derive(Debug)]
struct GatedDelta {
    head_size: usize,
}

impl NativeBackend for GatedDelta {
    fn check_config(&self, config: &Config) -> Result<(), String> {
        scale(config).map(drop)
    }
}

fn scale(config: &Config) -> Result<f64, String> {
    let value = config.get("scale").unwrap_or(&Value::Null);
    value
        .as_f64()
        .filter(|scale| *scale > 0.0)
        .ok_or_else(|| format!("scale must be a positive number, not {value}"))
}

/// One token of one head.
struct Token<'a> {
    q: &'a [f64],
    k: &'a [f64],
    v: &'a [f64],
    /// The log of the decay.
    gate: f64,
    beta: f64,
}

impl GatedDelta {
    /// S <- e^g S; S <- S + beta (v - S k) k^T; out = scale S q, with S stored as V rows of K.
    fn decode(&self, state: &mut [f64], token: &Token<'_>, scale: f64, out: &mut [f64]) {
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        for ((row, v), out) in state.chunks_exact_mut(self.head_size).zip(token.v).zip(out) {
            let decay = token.gate.exp();
            let change = token.beta * (v - decay * dot(row, token.k));
            for (s, k) in row.iter_mut().zip(token.k) {
                *s = *s * decay + change * k;
            }
            *out = scale * dot(row, token.q);
        }
    }
}

/// Registration data of a backend that serves prefill and decode on the CPU.
fn elsewhere(op: Op, name: &str, priority: i32) -> BackendSpec {
    BackendSpec {
        name: name.to_owned(),
        op,
        phases: [Phase::Prefill, Phase::Decode].into(),
        path: format!("{name}:Backend"),
        capabilities: Capabilities {
            devices: vec![DeviceSupport::any(DeviceKind::Cpu)],
            ..Capabilities::default()
        },
        priority,
        config: Config::new(),
    }
}

fn main() -> ExitCode {
    if let Err(error) = run() {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn run() -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::new();

    // Registers all backends, or none if one is invalid.
    let transaction = runtime.begin(Origin::User);
    let registrar = transaction.registrar();
    let native = BackendSpec {
        path: "embed::GatedDelta".to_owned(),
        config: json!({"scale": 2.0}).as_object().cloned().unwrap_or_default(),
        ..elsewhere(Op::GatedDelta, "native", 0)
    };
    registrar.add(
        native,
        Entry::Native(Arc::new(GatedDelta { head_size: 4 })),
        false,
    )?;
    registrar.add(elsewhere(Op::GatedDelta, "other", -1), Entry::Foreign, false)?;
    registrar.add(elsewhere(Op::ShortConv, "other", 0), Entry::Foreign, false)?;
    registrar.add(elsewhere(Op::Attention, "other", 0), Entry::Foreign, false)?;
    let version = transaction.commit()?.version;
    println!("registered: version {version}");

    let layout = match std::env::args_os().nth(1) {
        Some(path) => Layout::from_path(path)?,
        None => Layout::from_config(&json!({
            "model_type": "qwen3_next", "num_hidden_layers": 8, "full_attention_interval": 4,
            "linear_num_key_heads": 1, "linear_num_value_heads": 1,
            "linear_key_head_dim": 4, "linear_value_head_dim": 4,
        }))?,
    };
    let mut request = PlanRequest::new(
        Device {
            kind: DeviceKind::Cpu,
            capability: None,
        },
        Dtype::Float32,
    );
    request.state_dtype = Some(Dtype::Float32);
    let plan = RoutePlan::new(&runtime.snapshot(), Arc::new(layout), request.clone())?;
    for route in plan.routes() {
        let decision = &route.decision;
        let (op, phase, name) = (decision.query.op, decision.query.phase, &decision.chosen.name);
        println!(
            "{op:<11} {phase:<7} {:?} -> {name} ({})",
            route.layers, decision.because
        );
        for rejection in &decision.rejected {
            println!("    not {rejection}");
        }
    }

    // A decode step: for each gated delta layer, one table lookup, then a call of the service's own code.
    let linear: Vec<usize> = plan
        .entries()
        .filter(|(_, op, phase, _)| (*op, *phase) == (Op::GatedDelta, Phase::Decode))
        .map(|(layer, ..)| layer)
        .collect();
    for layer in linear {
        let id = plan.lookup(layer, Op::GatedDelta, Phase::Decode)?;
        let pinned = plan.backend(id).ok_or("a plan has all backends of its tables")?;
        let Some(backend) = pinned.entry.native::<GatedDelta>() else {
            println!("layer {layer}: served by another backend");
            continue;
        };
        let (mut state, mut out) = ([0.0; 16], [0.0; 4]);
        let unit = [1.0, 0.0, 0.0, 0.0];
        let token = Token {
            q: &unit,
            k: &unit,
            v: &[1.0, 2.0, 3.0, 4.0],
            gate: -0.1,
            beta: 0.5,
        };
        backend.decode(&mut state, &token, scale(&pinned.effective_config())?, &mut out);
        println!("layer {layer}: {out:?}");
    }

    // Errors name the invalid value and the valid ones.
    if let Err(error) = plan.lookup(plan.layout().layers().len(), Op::GatedDelta, Phase::Decode) {
        println!("{}: {error}", error.code());
    }
    request.preferences = Preferences::parse([("linear.decode", "natve")])?;
    if let Err(error) = RoutePlan::new(&runtime.snapshot(), Arc::clone(plan.layout()), request) {
        println!("{}: {error}", error.code());
    }
    Ok(())
}
