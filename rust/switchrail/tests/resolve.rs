//! Tests of decisions: one per reason, the order of candidates, and the user's choices.

mod common;

use std::sync::Arc;

use common::{plugin, preferences, query, register, sample, spec};
use serde_json::json;
use switchrail::{
    BackendSpec, Because, ComputeCapability, CoreError, Decision, Device, DeviceKind, DeviceSupport, Dtype,
    HeadSize, Op, Origin, Packages, Phase, PreferenceError, Preferences, Query, Reason, ResolveError,
    Runtime,
};

const OP: Op = Op::GatedDelta;

fn resolve(runtime: &Arc<Runtime>, query: &Query) -> Result<Decision, ResolveError> {
    runtime
        .snapshot()
        .resolve(query, &Preferences::default(), &Packages::default())
}

/// Registers `plain`, and `picky` after `change`. Returns the reasons against `picky` for the query that `ask`
/// has changed. For the query that `fits` has changed, `picky` must be chosen.
fn reasons(
    change: impl Fn(&mut BackendSpec),
    ask: impl Fn(&mut Query),
    fits: impl Fn(&mut Query),
) -> Vec<Reason> {
    let runtime = Runtime::new();
    let mut picky = BackendSpec {
        priority: 5,
        ..spec(OP, "picky")
    };
    change(&mut picky);
    let mut plain = spec(OP, "plain");
    plain.phases = Phase::ALL.into();
    plain
        .capabilities
        .devices
        .push(DeviceSupport::any(DeviceKind::Cuda));
    plain.capabilities.features = ["raw_gates".to_owned(), "oot:replay".to_owned()].into();
    register(&runtime, Origin::User, picky, false);
    register(&runtime, Origin::User, plain, false);

    let mut fitting = query(OP);
    fits(&mut fitting);
    assert_eq!(
        resolve(&runtime, &fitting).unwrap().chosen.name,
        "picky",
        "it fits the changed query"
    );

    let mut unfit = query(OP);
    ask(&mut unfit);
    let decision = resolve(&runtime, &unfit).unwrap();
    assert_eq!(
        (decision.chosen.name.as_str(), &decision.because),
        ("plain", &Because::OnlyFit)
    );
    assert_eq!(decision.rejected.len(), 1);
    assert_eq!(decision.rejected[0].backend.name, "picky");
    decision.rejected[0].reasons.clone()
}

fn cuda(capability: Option<ComputeCapability>) -> Device {
    Device {
        kind: DeviceKind::Cuda,
        capability,
    }
}

fn hopper_only() -> DeviceSupport {
    DeviceSupport {
        kind: DeviceKind::Cuda,
        min_capability: Some(ComputeCapability(9, 0)),
        max_capability: Some(ComputeCapability(9, 9)),
    }
}

#[test]
fn reason_phase() {
    let found = reasons(
        |_| (),
        |query| query.phase = Phase::Verify,
        |query| query.phase = Phase::Prefill,
    );
    assert_eq!(
        found,
        [Reason::Phase {
            asked: Phase::Verify,
            valid: [Phase::Prefill, Phase::Decode].into()
        }]
    );
    assert_eq!(
        found[0].to_string(),
        "does not serve verify, only prefill, decode"
    );
}

#[test]
fn reason_device() {
    let found = reasons(
        |_| (),
        |query| query.device = cuda(Some(ComputeCapability(9, 0))),
        |_| (),
    );
    let valid = vec![DeviceSupport::any(DeviceKind::Cpu)];
    assert_eq!(
        found,
        [Reason::Device {
            asked: DeviceKind::Cuda,
            valid
        }]
    );
    assert_eq!(found[0].to_string(), "does not run on cuda, only on cpu");
}

#[test]
fn reason_capability() {
    for asked in [ComputeCapability(8, 9), ComputeCapability(10, 0)] {
        let found = reasons(
            |spec| spec.capabilities.devices.push(hopper_only()),
            |query| query.device = cuda(Some(asked)),
            |query| query.device = cuda(Some(ComputeCapability(9, 0))),
        );
        assert_eq!(
            found,
            [Reason::Capability {
                asked,
                valid: vec![hopper_only()]
            }]
        );
        assert_eq!(
            found[0].to_string(),
            format!("does not run on capability {asked}, only on cuda 9.0 to 9.9")
        );
    }
    let one = DeviceSupport {
        max_capability: Some(ComputeCapability(9, 0)),
        ..hopper_only()
    };
    assert_eq!(one.to_string(), "cuda 9.0");
}

#[test]
fn a_capability_in_any_of_several_ranges_fits() {
    let two = |spec: &mut BackendSpec| {
        let blackwell = DeviceSupport {
            min_capability: Some(ComputeCapability(12, 0)),
            ..DeviceSupport::any(DeviceKind::Cuda)
        };
        spec.capabilities.devices = vec![hopper_only(), blackwell];
    };
    for fits in [ComputeCapability(9, 0), ComputeCapability(12, 1)] {
        let found = reasons(
            two,
            |query| query.device = cuda(Some(ComputeCapability(10, 0))),
            |query| query.device = cuda(Some(fits)),
        );
        assert!(
            matches!(&found[..], [Reason::Capability { valid, .. }] if valid.len() == 2),
            "{found:?}"
        );
    }
}

#[test]
fn reason_capability_unknown() {
    let found = reasons(
        |spec| spec.capabilities.devices = vec![hopper_only()],
        |query| query.device = cuda(None),
        |query| query.device = cuda(Some(ComputeCapability(9, 0))),
    );
    assert_eq!(
        found,
        [Reason::CapabilityUnknown {
            valid: vec![hopper_only()]
        }]
    );
    assert_eq!(
        found[0].to_string(),
        "runs only on cuda 9.0 to 9.9, and the device's capability is not known"
    );
}

#[test]
fn reason_dtype() {
    let valid = [Dtype::Float32, Dtype::Bfloat16];
    let found = reasons(
        |spec| spec.capabilities.dtypes = valid.into(),
        |query| query.dtype = Dtype::Float16,
        |query| query.dtype = Dtype::Bfloat16,
    );
    assert_eq!(
        found,
        [Reason::Dtype {
            asked: Dtype::Float16,
            valid: valid.into()
        }]
    );
    assert_eq!(
        found[0].to_string(),
        "does not take float16, only float32, bfloat16"
    );
}

#[test]
fn reason_state_dtype() {
    let valid = [Dtype::Float32];
    let found = reasons(
        |spec| spec.capabilities.state_dtypes = valid.into(),
        |query| query.state_dtype = Some(Dtype::Bfloat16),
        |query| query.state_dtype = Some(Dtype::Float32),
    );
    assert_eq!(
        found,
        [Reason::StateDtype {
            asked: Dtype::Bfloat16,
            valid: valid.into()
        }]
    );
    assert_eq!(
        found[0].to_string(),
        "does not take a state in bfloat16, only float32"
    );
}

#[test]
fn reason_head_size() {
    let valid = [HeadSize::from(128), HeadSize { k: 576, v: 512 }];
    let found = reasons(
        |spec| spec.capabilities.head_sizes = valid.into(),
        |query| query.head_size = Some(HeadSize { k: 512, v: 576 }),
        |query| query.head_size = Some(HeadSize { k: 576, v: 512 }),
    );
    assert_eq!(
        found,
        [Reason::HeadSize {
            asked: HeadSize { k: 512, v: 576 },
            valid: valid.into()
        }]
    );
    assert_eq!(
        found[0].to_string(),
        "does not take head size 512/576, only 128, 576/512"
    );
}

#[test]
fn reason_page_size() {
    let found = reasons(
        |spec| spec.capabilities.page_sizes = [16, 64].into(),
        |query| query.page_size = Some(1),
        |query| query.page_size = Some(64),
    );
    assert_eq!(
        found,
        [Reason::PageSize {
            asked: 1,
            valid: [16, 64].into()
        }]
    );
    assert_eq!(found[0].to_string(), "does not take page size 1, only 16, 64");
}

#[test]
fn reason_state_layout() {
    let found = reasons(
        |spec| spec.capabilities.state_layouts = ["KV".to_owned()].into(),
        |query| query.state_layout = Some("VK".into()),
        |query| query.state_layout = Some("KV".into()),
    );
    assert_eq!(
        found,
        [Reason::StateLayout {
            asked: "VK".into(),
            valid: ["KV".to_owned()].into()
        }]
    );
    assert_eq!(found[0].to_string(), "does not take state layout VK, only KV");
}

#[test]
fn reason_features() {
    let ask = |query: &mut Query| query.features = ["raw_gates".to_owned(), "oot:replay".to_owned()].into();
    let found = reasons(
        |spec| spec.capabilities.features = ["raw_gates".to_owned()].into(),
        ask,
        |_| (),
    );
    let (missing, valid) = (["oot:replay".to_owned()].into(), ["raw_gates".to_owned()].into());
    assert_eq!(found, [Reason::Features { missing, valid }]);
    assert_eq!(found[0].to_string(), "lacks oot:replay; it has raw_gates");
    let none = reasons(|_| (), ask, |_| ());
    assert_eq!(none[0].to_string(), "lacks oot:replay, raw_gates");
}

/// The reasons against a backend that requires the packages `needed`, if `installed` are installed.
fn package_reasons(needed: &[&str], installed: &[(&str, &str)]) -> Vec<Reason> {
    let runtime = Runtime::new();
    let mut needy = spec(OP, "needy");
    needy.capabilities.packages = needed.iter().map(|text| text.parse().unwrap()).collect();
    register(&runtime, Origin::User, needy, false);
    let packages = installed.iter().copied().collect();
    match runtime
        .snapshot()
        .resolve(&query(OP), &Preferences::default(), &packages)
    {
        Ok(decision) => {
            assert_eq!(decision.chosen.name, "needy");
            vec![]
        }
        Err(ResolveError::NoBackend { mut rejected, .. }) => rejected.remove(0).reasons,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn reason_package_missing() {
    let found = package_reasons(&["FlashInfer_python"], &[("flashinfer", "0.6")]);
    assert_eq!(
        found,
        [Reason::PackageMissing {
            needed: "flashinfer-python".parse().unwrap()
        }]
    );
    assert_eq!(
        found[0].to_string(),
        "needs flashinfer-python, which is not installed"
    );
    assert_eq!(
        package_reasons(&["FlashInfer_python"], &[("Flashinfer.Python", "0.6")]),
        []
    );
    assert_eq!(
        package_reasons(&["a", "b"], &[]).len(),
        2,
        "one reason for each missing package"
    );
}

#[test]
fn reason_package_version() {
    let found = package_reasons(&["fla-core>=0.6,<0.7"], &[("fla_core", "0.5.1")]);
    let needed = "fla-core>=0.6,<0.7".parse().unwrap();
    assert_eq!(
        found,
        [Reason::PackageVersion {
            needed,
            installed: "0.5.1".into()
        }]
    );
    assert_eq!(
        found[0].to_string(),
        "needs fla-core>=0.6, <0.7, and version 0.5.1 is installed"
    );
    assert_eq!(
        package_reasons(&["fla-core>=0.6,<0.7"], &[("fla_core", "0.6.10")]),
        []
    );
    assert_eq!(
        package_reasons(&["fla-core>=0.6"], &[("fla_core", "no version")]).len(),
        1
    );
    assert_eq!(package_reasons(&["fla-core"], &[("fla_core", "no version")]), []);
}

#[test]
fn an_invalid_requirement_is_refused() {
    use switchrail::PackageRequirement;
    for (text, code) in [
        ("", "bad_requirement_name"),
        ("-a", "bad_requirement_name"),
        (">=1", "bad_requirement_name"),
        ("a >= ", "bad_requirement_specifier"),
        ("a b", "bad_requirement_specifier"),
        ("a[extra]", "bad_requirement_specifier"),
        ("a ~= 1", "bad_requirement_specifier"),
    ] {
        assert_eq!(
            text.parse::<PackageRequirement>().unwrap_err().code(),
            code,
            "{text:?}"
        );
    }
}

#[test]
fn reason_overridden() {
    let runtime = Runtime::new();
    let below = register(&runtime, Origin::Builtin, spec(OP, "torch"), false);
    let by = register(&runtime, plugin("acme"), spec(OP, "torch"), true);
    let decision = resolve(&runtime, &query(OP)).unwrap();
    assert_eq!((decision.chosen.id, &decision.because), (by, &Because::OnlyFit));
    assert_eq!(decision.rejected.len(), 1);
    assert_eq!(decision.rejected[0].backend.id, below);
    assert_eq!(
        decision.rejected[0].reasons,
        [Reason::Overridden {
            by,
            origin: plugin("acme")
        }]
    );
    assert_eq!(
        decision.rejected[0].to_string(),
        r#"torch: overridden by plugin "acme" of acme 1.0"#
    );
}

#[test]
fn reason_not_preferred() {
    let runtime = Runtime::new();
    register(
        &runtime,
        Origin::User,
        BackendSpec {
            priority: 9,
            ..spec(OP, "fast")
        },
        false,
    );
    register(&runtime, Origin::User, spec(OP, "slow"), false);
    let chosen = preferences([("linear", "slow")]);
    let decision = runtime
        .snapshot()
        .resolve(&query(OP), &chosen, &Packages::default())
        .unwrap();
    let key = "linear".parse().unwrap();
    assert_eq!(
        (decision.chosen.name.as_str(), &decision.because),
        ("slow", &Because::Preferred { key })
    );
    assert_eq!(
        decision.rejected[0].reasons,
        [Reason::NotPreferred {
            key,
            chosen: "slow".into()
        }]
    );
    assert_eq!(
        decision.rejected[0].to_string(),
        "fast: fits, but slow was chosen for linear"
    );
}

#[test]
fn reasons_of_an_order() {
    let runtime = Runtime::new();
    for (name, priority) in [("fast", 9), ("slow", 0), ("slower", -1), ("broken", 99)] {
        let backend = BackendSpec {
            priority,
            ..spec(OP, name)
        };
        register(&runtime, Origin::User, backend, false);
    }
    let key = "linear".parse().unwrap();
    let resolve = |value| {
        let chosen = preferences([("linear", value)]);
        chosen.check(&runtime.snapshot()).unwrap();
        let decision = runtime
            .snapshot()
            .resolve(&query(OP), &chosen, &Packages::default())
            .unwrap();
        let others = decision
            .rejected
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>();
        (decision.chosen.name, decision.because, others)
    };
    assert_eq!(
        resolve("slower, slow, !broken"),
        (
            "slower".into(),
            Because::Ordered { key },
            vec![
                "slow: fits, but slower comes first in the order for linear".into(),
                "broken: denied for linear".into(),
                "fast: fits, but slower comes first in the order for linear".into(),
            ]
        )
    );
    let (name, because, others) = resolve("!broken");
    assert_eq!(
        (name.as_str(), because),
        ("fast", Because::Priority { priority: 9 })
    );
    assert_eq!(others[0], "broken: denied for linear");
    assert_eq!(resolve("!slow, !broken, auto").0, "fast");
    assert_eq!(resolve("slow, broken, !slow").0, "broken");
    assert_eq!(
        Because::Ordered { key }.to_string(),
        "first that fits in the order for linear"
    );

    let unknown = preferences([("linear", "fast, !slwo")]);
    let error = unknown.check(&runtime.snapshot()).unwrap_err();
    assert!(error.to_string().contains("slwo"), "{error}");
    let all = preferences([("linear", "!fast, !slow, !slower, !broken")]);
    let refused = runtime.snapshot().resolve(&query(OP), &all, &Packages::default());
    assert!(matches!(refused, Err(ResolveError::NoBackend { .. })));
}

#[test]
fn a_denial_holds_under_a_more_specific_key() {
    let runtime = Runtime::new();
    for (name, priority) in [("fast", 9), ("slow", 0), ("slower", -1)] {
        let backend = BackendSpec {
            priority,
            ..spec(OP, name)
        };
        register(&runtime, Origin::User, backend, false);
    }
    let resolve = |pairs: &[(&str, &str)]| {
        let chosen = Preferences::parse(pairs.iter().copied()).unwrap();
        runtime
            .snapshot()
            .resolve(&query(OP), &chosen, &Packages::default())
    };
    let serves = |pairs: &[(&str, &str)]| resolve(pairs).unwrap().chosen.name;
    for general in ["gated_delta", "linear.decode", "linear"] {
        assert_eq!(
            serves(&[(general, "!fast"), ("gated_delta.decode", "auto")]),
            "slow",
            "{general}"
        );
    }
    let all = [
        ("linear", "!fast"),
        ("linear.decode", "slower, auto"),
        ("gated_delta", "!slower"),
        ("gated_delta.decode", "!slow"),
    ];
    assert_eq!(serves(&all[..2]), "slower", "the denial is not an order");
    assert_eq!(serves(&all[..3]), "slow");
    let Err(ResolveError::NoBackend { rejected, .. }) = resolve(&all) else {
        panic!("one of the denied backends serves")
    };
    let reasons: Vec<_> = rejected.iter().map(ToString::to_string).collect();
    assert_eq!(
        reasons,
        [
            "slower: denied for gated_delta",
            "fast: denied for linear",
            "slow: denied for gated_delta.decode",
        ]
    );
}

#[test]
fn a_denial_does_not_replace_an_unfit_choice() {
    let runtime = Runtime::new();
    register(&runtime, Origin::User, spec(OP, "torch"), false);
    register(&runtime, Origin::User, spec(OP, "reference"), false);
    let mut cuda = spec(OP, "acme");
    cuda.capabilities.devices = vec![DeviceSupport::any(DeviceKind::Cuda)];
    register(&runtime, Origin::User, cuda, false);
    let refused = |pairs: &[(&str, &str)]| {
        let chosen = Preferences::parse(pairs.iter().copied()).unwrap();
        let snapshot = runtime.snapshot();
        let error = snapshot
            .resolve(&query(OP), &chosen, &Packages::default())
            .unwrap_err();
        assert_eq!(error.code(), "unfit_backend");
        error.to_string()
    };
    assert!(refused(&[("linear", "acme, !reference")]).contains("does not run on cpu"));
    assert!(refused(&[("linear", "acme"), ("gated_delta", "!reference")]).contains("does not run on cpu"));
    let both = refused(&[("linear", "!torch"), ("gated_delta.decode", "torch")]);
    let start = "\"torch\", chosen for gated_delta.decode, can't serve gated_delta decode on cpu in float32: \
                 denied for linear\n";
    assert!(both.starts_with(start), "{both}");
}

#[test]
fn auto_ends_an_order_and_is_not_denied() {
    let runtime = Runtime::new();
    register(&runtime, Origin::User, spec(OP, "torch"), false);
    let check = |value| preferences([("linear", value)]).check(&runtime.snapshot());
    for valid in ["auto", "torch, auto", "torch, auto, !torch", "!torch, auto"] {
        assert_eq!(check(valid), Ok(()), "{valid}");
    }
    for found in ["auto, torch", "!auto", "torch, ! auto", "auto, auto"] {
        let error = check(found).unwrap_err();
        assert_eq!(error.code(), "misplaced_auto", "{found}");
        assert_eq!(error.fields(), json!({"key": "linear", "found": found}));
        assert!(
            error.to_string().starts_with("preference linear: got "),
            "{error}"
        );
    }
}

#[test]
fn reason_lower_priority() {
    let runtime = Runtime::new();
    register(
        &runtime,
        Origin::User,
        BackendSpec {
            priority: -100,
            ..spec(OP, "reference")
        },
        false,
    );
    register(&runtime, Origin::User, spec(OP, "torch"), false);
    let decision = resolve(&runtime, &query(OP)).unwrap();
    assert_eq!(
        (decision.chosen.name.as_str(), &decision.because),
        ("torch", &Because::Priority { priority: 0 })
    );
    assert_eq!(
        decision.rejected[0].reasons,
        [Reason::LowerPriority {
            priority: -100,
            chosen: 0
        }]
    );
    assert_eq!(
        decision.rejected[0].to_string(),
        "reference: fits, but its priority -100 is below 0"
    );
}

#[test]
fn the_fastest_measured() {
    let runtime = Runtime::new();
    for (name, priority) in [("top", 100), ("slow", 50), ("quick", 0), ("new", 0), ("unfit", 0)] {
        let mut spec = BackendSpec {
            priority,
            ..spec(OP, name)
        };
        if name == "unfit" {
            spec.phases = [Phase::Prefill].into();
        }
        register(&runtime, Origin::User, spec, false);
    }
    let ask = |times: &[(&str, u64)]| {
        let query = Query {
            measured: vec![sample(1, 1, times)],
            ..query(OP)
        };
        resolve(&runtime, &query).unwrap()
    };
    let times = [("top", 12_340), ("slow", 40_000), ("quick", 2_000), ("unfit", 1)];
    let decision = ask(&times);
    assert_eq!(
        (decision.chosen.name.as_str(), &decision.because),
        ("quick", &Because::Measured { nanoseconds: 2_000 })
    );
    assert_eq!(
        decision.because.to_string(),
        "fastest that fits, as measured here (2.0 us)"
    );
    let told: Vec<_> = decision.rejected.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "top: fits, but takes 12.3 us as measured here; the chosen one takes 2.0 us",
            "slow: fits, but takes 40.0 us as measured here; the chosen one takes 2.0 us",
            "new: fits, but was not measured here; the chosen one takes 2.0 us",
            "unfit: does not serve decode, only prefill",
        ]
    );

    let untimed = ask(&times[1..]);
    assert_eq!(
        (untimed.chosen.name.as_str(), &untimed.because),
        ("top", &Because::Priority { priority: 100 }),
        "times decide nothing, because the backend with the highest priority was not measured"
    );
    let even = ask(&[("top", 5), ("slow", 5)]);
    assert_eq!(even.chosen.name, "top");

    let key = "gated_delta".parse().unwrap();
    let query = Query {
        measured: vec![sample(1, 1, &[("top", 2), ("quick", 1)])],
        ..query(OP)
    };
    let chosen = preferences([("gated_delta", "slow")]);
    let decision = runtime
        .snapshot()
        .resolve(&query, &chosen, &Packages::default())
        .unwrap();
    assert_eq!(
        (decision.chosen.name.as_str(), &decision.because),
        ("slow", &Because::Preferred { key })
    );
}

#[test]
fn reason_later_in_order() {
    let runtime = Runtime::new();
    register(&runtime, Origin::Builtin, spec(OP, "a"), false);
    register(&runtime, plugin("zeta"), spec(OP, "b"), false);
    register(&runtime, plugin("acme"), spec(OP, "d"), false);
    register(&runtime, plugin("acme"), spec(OP, "c"), false);
    let decision = resolve(&runtime, &query(OP)).unwrap();
    assert_eq!(
        (decision.chosen.name.as_str(), &decision.because),
        ("c", &Because::First { priority: 0 })
    );
    let rejected: Vec<_> = decision
        .rejected
        .iter()
        .map(|rejection| rejection.backend.name.as_str())
        .collect();
    assert_eq!(rejected, ["d", "b", "a"], "by origin, distribution, then name");
    for rejection in &decision.rejected {
        assert_eq!(rejection.reasons, [Reason::LaterInOrder { priority: 0 }]);
    }
    let user = register(&runtime, Origin::User, spec(OP, "z"), false);
    assert_eq!(
        resolve(&runtime, &query(OP)).unwrap().chosen.id,
        user,
        "the user's backends come first"
    );
}

#[test]
fn all_reasons_are_given_not_only_the_first() {
    let found = reasons(
        |spec| {
            spec.capabilities.dtypes = [Dtype::Float32].into();
            spec.capabilities.page_sizes = [16].into();
        },
        |query| {
            query.phase = Phase::Verify;
            query.device = cuda(Some(ComputeCapability(9, 0)));
            query.dtype = Dtype::Float16;
            query.page_size = Some(1);
        },
        |_| (),
    );
    assert_eq!(found.len(), 4, "{found:?}");
}

#[test]
fn no_backend_says_why_for_each_candidate() {
    let runtime = Runtime::new();
    let error = resolve(&runtime, &query(OP)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no backend for gated_delta decode on cpu in float32: none is registered for the op"
    );
    register(
        &runtime,
        Origin::Builtin,
        BackendSpec {
            phases: [Phase::Prefill].into(),
            ..spec(OP, "a")
        },
        false,
    );
    let mut gpu = spec(OP, "b");
    gpu.capabilities.devices = vec![DeviceSupport::any(DeviceKind::Cuda)];
    register(&runtime, plugin("acme"), gpu, false);
    let error = resolve(&runtime, &query(OP)).unwrap_err();
    assert_eq!(error.code(), "no_backend");
    assert_eq!(error.fields()["rejected"].as_array().unwrap().len(), 2);
    assert_eq!(
        error.to_string(),
        "no backend for gated_delta decode on cpu in float32:\n  \
         b: does not run on cpu, only on cuda\n  \
         a: does not serve decode, only prefill"
    );
}

#[test]
fn an_unfit_choice_is_an_error_even_if_another_backend_fits() {
    let runtime = Runtime::new();
    register(&runtime, Origin::Builtin, spec(OP, "torch"), false);
    let mut acme = spec(OP, "acme");
    acme.capabilities.devices = vec![DeviceSupport::any(DeviceKind::Cuda)];
    register(&runtime, plugin("acme"), acme, false);
    let chosen = preferences([("gated_delta.decode", "acme")]);
    let error = runtime
        .snapshot()
        .resolve(&query(OP), &chosen, &Packages::default())
        .unwrap_err();
    assert_eq!(
        (error.code(), &error.fields()["found"]),
        ("unfit_backend", &json!("acme"))
    );
    assert_eq!(
        error.to_string(),
        "\"acme\", chosen for gated_delta.decode, can't serve gated_delta decode on cpu in float32: \
         does not run on cpu, only on cuda\n  torch: fits, but acme was chosen for gated_delta.decode"
    );
}

#[test]
fn an_unknown_choice_names_the_nearest() {
    let runtime = Runtime::new();
    register(&runtime, Origin::Builtin, spec(OP, "triton"), false);
    register(&runtime, Origin::Builtin, spec(OP, "torch"), false);
    let chosen = preferences([("linear.decode", "tritn")]);
    let error = runtime
        .snapshot()
        .resolve(&query(OP), &chosen, &Packages::default())
        .unwrap_err();
    assert_eq!(
        (error.code(), &error.fields()["nearest"]),
        ("unknown_backend", &json!(["triton"]))
    );
    assert_eq!(error.fields()["valid"], json!(["torch", "triton"]));
    let auto = preferences([("linear.decode", "auto")]);
    assert!(
        runtime
            .snapshot()
            .resolve(&query(OP), &auto, &Packages::default())
            .is_ok()
    );
}

#[test]
fn the_most_specific_preference_counts() {
    let pairs = [
        ("gated_delta.decode", "1"),
        ("gated_delta", "2"),
        ("linear.decode", "3"),
        ("linear", "4"),
        ("mla", "no"),
    ];
    for skipped in 0..4 {
        let preferences = Preferences::parse(pairs[skipped..].iter().copied()).unwrap();
        let (key, name) = preferences.choice(OP, Phase::Decode).unwrap();
        assert_eq!((key.to_string().as_str(), name), pairs[skipped]);
    }
    let rest = Preferences::parse(pairs[4..].iter().copied()).unwrap();
    assert_eq!(rest.choice(OP, Phase::Decode), None);
    let family = preferences([("linear", "x")]);
    for op in Op::ALL {
        let linear = ["gated_delta", "kda", "lightning", "mamba2"].contains(&op.name());
        assert_eq!(family.choice(op, Phase::Verify).is_some(), linear, "{op}");
    }
    let partly = preferences([("linear", "x"), ("linear.decode", "auto")]);
    assert_eq!(partly.choice(OP, Phase::Decode), None);
    assert!(partly.choice(OP, Phase::Prefill).is_some());
}

#[test]
fn invalid_preferences_are_refused() {
    let error = Preferences::parse([("gated_delta.decod", "torch")]).unwrap_err();
    assert_eq!(error.code(), "unknown_preference_key");
    assert_eq!(error.fields()["nearest"][0], "gated_delta.decode");
    assert_eq!(error.fields()["valid"].as_array().unwrap().len(), 32);

    let runtime = Runtime::new();
    register(&runtime, Origin::Builtin, spec(Op::Kda, "torch"), false);
    let check = |pairs| preferences(pairs).check(&runtime.snapshot());
    assert_eq!(
        check([("linear", "torch")]),
        Ok(()),
        "one of the linear ops has it"
    );
    assert_eq!(check([("gated_delta", "auto")]), Ok(()));
    let error = check([("linear", "torhc")]).unwrap_err();
    assert!(
        matches!(&error, PreferenceError::UnknownBackend { name, .. } if name.nearest == ["torch"]),
        "{error}"
    );
    assert_eq!(
        check([("gated_delta", "torch")]).unwrap_err().code(),
        "unknown_preferred_backend"
    );
}

#[test]
fn the_order_of_registration_does_not_matter() {
    let mut decisions = Vec::new();
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let runtime = Runtime::new();
        for index in order {
            let name = ["a", "b", "c"][index];
            register(
                &runtime,
                plugin(["zeta", "acme", "acme"][index]),
                spec(OP, name),
                false,
            );
        }
        let decision = resolve(&runtime, &query(OP)).unwrap();
        let rejected: Vec<_> = decision
            .rejected
            .iter()
            .map(|r| (r.backend.name.clone(), r.reasons.clone()))
            .collect();
        decisions.push((decision.chosen.name, decision.because, rejected));
    }
    assert_eq!(decisions[0].0, "b");
    assert!(
        decisions.windows(2).all(|pair| pair[0] == pair[1]),
        "{decisions:?}"
    );
}

#[test]
fn a_decision_names_its_version_and_survives_later_commits() {
    let runtime = Runtime::new();
    register(&runtime, Origin::User, spec(OP, "a"), false);
    let snapshot = runtime.snapshot();
    register(
        &runtime,
        Origin::User,
        BackendSpec {
            priority: 1,
            ..spec(OP, "b")
        },
        false,
    );
    let ask = |snapshot: &switchrail::Snapshot| {
        let decision = snapshot
            .resolve(&query(OP), &Preferences::default(), &Packages::default())
            .unwrap();
        (decision.version, decision.chosen.name)
    };
    assert_eq!(ask(&snapshot), (1, "a".into()));
    assert_eq!(ask(&runtime.snapshot()), (2, "b".into()));
}
