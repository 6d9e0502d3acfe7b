//! The fingerprint is equal for equal inputs, and differs as soon as one input changes.

mod common;

use std::{path::PathBuf, process::Command, sync::Arc};

use common::{clear, configure, plugin, preferences, qwen3_next, register, request, spec};
use serde_json::json;
use switchrail::{
    BackendSpec, Fingerprint, FingerprintInputs, HookChain, LayerKind, Layout, Op, Origin, Phase,
    PlanRequest, PluginGroup, PluginOrigin, PluginRecord, PluginState, RoutePlan, Runtime,
};

/// All inputs of a fingerprint, to be changed one by one.
struct World {
    plugins: Vec<PluginRecord>,
    hooks: Vec<HookChain>,
    runtime: Arc<Runtime>,
    layout: Arc<Layout>,
    request: PlanRequest,
}

fn record(distribution: &str) -> PluginRecord {
    PluginRecord {
        name: distribution.to_owned(),
        group: PluginGroup::Plugins,
        target: format!("{distribution}:register"),
        extras: vec![],
        origin: PluginOrigin {
            distribution: distribution.to_owned(),
            version: Some("1.0".to_owned()),
            path: PathBuf::from(format!("lib/{distribution}-1.0.dist-info")),
        },
        state: PluginState::Loaded,
    }
}

fn chain(target: &str, hooks: &[&str]) -> HookChain {
    HookChain {
        target: target.to_owned(),
        hooks: hooks.iter().map(ToString::to_string).collect(),
    }
}

fn specs() -> [(Origin, BackendSpec); 5] {
    [
        (Origin::Builtin, spec(Op::Attention, "torch")),
        (Origin::Builtin, spec(Op::GatedDelta, "torch")),
        (Origin::Builtin, spec(Op::ShortConv, "torch")),
        (
            plugin("acme"),
            BackendSpec {
                priority: 1,
                ..spec(Op::GatedDelta, "acme")
            },
        ),
        (plugin("zeta"), spec(Op::GatedDelta, "zeta")),
    ]
}

fn world() -> World {
    let runtime = Runtime::new();
    for (origin, spec) in specs() {
        register(&runtime, origin, spec, false);
    }
    World {
        plugins: vec![record("acme"), record("zeta")],
        hooks: vec![
            chain("a:f", &["acme:one", "zeta:two"]),
            chain("b:g", &["zeta:three"]),
        ],
        runtime,
        layout: qwen3_next(4),
        request: request(),
    }
}

fn digest(world: &World) -> String {
    let snapshot = world.runtime.snapshot();
    let plan = RoutePlan::new(&snapshot, Arc::clone(&world.layout), world.request.clone()).unwrap();
    let inputs = FingerprintInputs {
        plugins: &world.plugins,
        hooks: &world.hooks,
        snapshot: &snapshot,
        plans: &[&plan],
    };
    Fingerprint::new(inputs).digest
}

#[test]
fn paths_and_the_orders_of_installation_loading_and_registration_do_not_change_it() {
    let expected = digest(&world());
    assert_eq!(expected.len(), 64);
    let mut other = world();
    other.plugins.reverse();
    other.hooks.reverse();
    for plugin in &mut other.plugins {
        plugin.origin.path = PathBuf::from("elsewhere").join(&plugin.origin.path);
    }
    let renamed = serde_json::to_string(&*other.layout)
        .unwrap()
        .replace("tiny-qwen3-next", "elsewhere");
    other.layout = Arc::new(serde_json::from_str(&renamed).unwrap());
    assert_eq!(other.layout.model(), "elsewhere");
    other.runtime = Runtime::new();
    for (origin, spec) in specs().into_iter().rev() {
        register(&other.runtime, origin, spec, false);
    }
    assert_eq!(digest(&other), expected);
}

/// Runs this test binary again; the other process prints the digest that it computes.
#[test]
fn another_process_computes_the_same_digest() {
    const ASKED: &str = "SWITCHRAIL_TEST_PRINT_FINGERPRINT";
    if std::env::var_os(ASKED).is_some() {
        println!("digest={}", digest(&world()));
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child
        .args([
            "another_process_computes_the_same_digest",
            "--exact",
            "--nocapture",
        ])
        .env(ASKED, "1")
        .output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let (_, rest) = text
        .split_once("digest=")
        .unwrap_or_else(|| panic!("no digest in {text}"));
    assert_eq!(&rest[..64], digest(&world()));
}

#[test]
fn each_input_changes_it() {
    type Change = (&'static str, fn(&mut World));
    let changes: [Change; 19] = [
        ("a plugin less", |world| drop(world.plugins.pop())),
        ("a plugin's name", |world| world.plugins[0].name = "other".into()),
        ("a plugin's group", |world| {
            world.plugins[0].group = PluginGroup::Platforms;
        }),
        ("a plugin's target", |world| {
            world.plugins[0].target = "acme:other".into();
        }),
        ("a plugin's distribution", |world| {
            world.plugins[0].origin.distribution = "other".into();
        }),
        ("a plugin's version", |world| {
            world.plugins[0].origin.version = Some("1.1".into());
        }),
        ("the order of hooks", |world| world.hooks[0].hooks.reverse()),
        ("a hook's target", |world| world.hooks[0].target = "a:h".into()),
        ("a hook less", |world| drop(world.hooks[0].hooks.pop())),
        ("a backend more", |world| {
            register(&world.runtime, plugin("acme"), spec(Op::Kda, "acme"), false);
        }),
        ("a backend less", |world| {
            clear(&world.runtime, Op::GatedDelta, "zeta");
        }),
        ("a backend's priority", |world| {
            clear(&world.runtime, Op::GatedDelta, "zeta");
            let changed = BackendSpec {
                priority: -1,
                ..spec(Op::GatedDelta, "zeta")
            };
            register(&world.runtime, plugin("zeta"), changed, false);
        }),
        ("a backend's origin", |world| {
            clear(&world.runtime, Op::GatedDelta, "zeta");
            register(
                &world.runtime,
                plugin("omega"),
                spec(Op::GatedDelta, "zeta"),
                false,
            );
        }),
        ("a backend's path", |world| {
            let changed = BackendSpec {
                path: "other:Backend".into(),
                ..spec(Op::GatedDelta, "zeta")
            };
            clear(&world.runtime, Op::GatedDelta, "zeta");
            register(&world.runtime, plugin("zeta"), changed, false);
        }),
        ("an override", |world| {
            let changed = BackendSpec {
                path: "other:Backend".into(),
                ..spec(Op::Attention, "torch")
            };
            register(&world.runtime, Origin::User, changed, true);
        }),
        ("a configuration", |world| {
            configure(&world.runtime, Op::GatedDelta, "zeta", &json!({"scale": 2}));
        }),
        ("a layer's kind", |world| {
            world.layout = Arc::new(Layout::from_kinds("tiny-qwen3-next", [LayerKind::GatedDelta; 4]));
        }),
        ("the number of layers", |world| world.layout = qwen3_next(8)),
        ("a route", |world| {
            world.request.preferences = preferences([("gated_delta.decode", "torch")]);
        }),
    ];
    let mut seen = vec![("nothing", digest(&world()))];
    for (what, change) in changes {
        let mut other = world();
        change(&mut other);
        let digest = digest(&other);
        if let Some((same, _)) = seen.iter().find(|(_, other)| *other == digest) {
            panic!("{what} gives the digest of {same}");
        }
        seen.push((what, digest));
    }
    assert_eq!(seen.len(), 20);
}

#[test]
fn the_order_of_overrides_with_a_common_phase_changes_it() {
    let digest = |reversed: bool| {
        let mut world = world();
        world.request.phases.insert(Phase::Verify);
        for op in [Op::Attention, Op::GatedDelta, Op::ShortConv] {
            let verifying = BackendSpec {
                phases: Phase::ALL.into(),
                ..spec(op, "torch")
            };
            register(&world.runtime, Origin::User, verifying, true);
        }
        let on = |path: &str, phases: [Phase; 2]| BackendSpec {
            path: path.into(),
            phases: phases.into(),
            ..spec(Op::Attention, "torch")
        };
        let mut overrides = [
            on("one:Backend", [Phase::Prefill, Phase::Decode]),
            on("two:Backend", [Phase::Decode, Phase::Verify]),
        ];
        if reversed {
            overrides.reverse();
        }
        for spec in overrides {
            register(&world.runtime, Origin::User, spec, true);
        }
        let snapshot = world.runtime.snapshot();
        let plan = RoutePlan::new(&snapshot, world.layout, world.request).unwrap();
        let inputs = FingerprintInputs {
            plugins: &[],
            hooks: &[],
            snapshot: &snapshot,
            plans: &[&plan],
        };
        Fingerprint::new(inputs).inputs
    };
    assert_eq!(digest(false), digest(false));
    for part in ["backends", "plans"] {
        assert_ne!(digest(false)[part], digest(true)[part]);
    }
}

#[test]
fn a_plugin_that_is_not_loaded_does_not_change_it() {
    let mut without = world();
    without.plugins.pop();
    let expected = digest(&without);
    for state in [
        PluginState::Discovered,
        PluginState::Blocked { reason: "x".into() },
        PluginState::Failed { reason: "x".into() },
        PluginState::Hung { reason: "x".into() },
    ] {
        let mut other = world();
        other.plugins[1].state = state.clone();
        assert_eq!(digest(&other), expected, "{state:?}");
    }
}

#[test]
fn backends_pinned_by_a_stale_plan_change_it() {
    let world = world();
    let old = world.runtime.snapshot();
    let plan = RoutePlan::new(&old, Arc::clone(&world.layout), world.request.clone()).unwrap();
    configure(&world.runtime, Op::GatedDelta, "acme", &json!({"scale": 2}));
    let new = world.runtime.snapshot();
    let inputs = FingerprintInputs {
        plugins: &[],
        hooks: &[],
        snapshot: &new,
        plans: &[&plan],
    };
    let stale = Fingerprint::new(inputs);
    let plan = RoutePlan::new(&new, Arc::clone(&world.layout), world.request.clone()).unwrap();
    let fresh = Fingerprint::new(FingerprintInputs {
        plans: &[&plan],
        ..inputs
    });
    assert_ne!(stale, fresh);
    assert_eq!(stale.inputs["backends"], fresh.inputs["backends"]);
    assert_ne!(
        stale.inputs["plans"], fresh.inputs["plans"],
        "the inputs show where they differ"
    );
}
