//! Tests of route plans: decisions, pinned backends and errors.

mod common;

use std::sync::Arc;

use common::{
    clear, configure, cpu, plugin, preferences, qwen3_next, register, request, runtime_with_torch, spec,
};
use serde_json::json;
use switchrail::{
    BackendSpec, ComputeCapability, CoreError, Device, DeviceKind, DeviceSupport, Dtype, Entry, HeadSize,
    LayerKind, Layout, Op, Origin, Phase, PlanError, PlanRequest, Registration, RouteError, RoutePlan,
    Runtime, WINDOW,
};

fn plan(runtime: &Runtime, layout: &Arc<Layout>, request: PlanRequest) -> Result<RoutePlan, PlanError> {
    RoutePlan::new(&runtime.snapshot(), Arc::clone(layout), request)
}

/// A backend of the gated delta rule that comes before the built-in one.
fn preferred(name: &str) -> BackendSpec {
    BackendSpec {
        priority: 1,
        ..spec(Op::GatedDelta, name)
    }
}

#[test]
fn every_layer_op_and_phase_is_routed_to_the_chosen_backend() {
    let runtime = runtime_with_torch();
    let fast = register(&runtime, plugin("acme"), preferred("fast"), false);
    let layout = qwen3_next(48);
    let mut request = request();
    request.preferences = preferences([("gated_delta.prefill", "torch")]);
    let plan = plan(&runtime, &layout, request).unwrap();
    let torch = |op| runtime.snapshot().find(op, "torch").unwrap().id;
    let mut expected = Vec::new();
    for layer in 0..48 {
        if layer % 4 == 3 {
            expected.push((layer, Op::Attention, Phase::Prefill, torch(Op::Attention)));
            expected.push((layer, Op::Attention, Phase::Decode, torch(Op::Attention)));
        } else {
            expected.push((layer, Op::ShortConv, Phase::Prefill, torch(Op::ShortConv)));
            expected.push((layer, Op::ShortConv, Phase::Decode, torch(Op::ShortConv)));
            expected.push((layer, Op::GatedDelta, Phase::Prefill, torch(Op::GatedDelta)));
            expected.push((layer, Op::GatedDelta, Phase::Decode, fast));
        }
    }
    assert_eq!(plan.entries().collect::<Vec<_>>(), expected);
    for (layer, op, phase, id) in expected {
        assert_eq!(plan.lookup(layer, op, phase), Ok(id));
        assert_eq!(plan.backend(id).unwrap().id, id);
    }
    assert_eq!(plan.routes().len(), 6, "one decision for each op and phase");
    assert_eq!(plan.backends().len(), 4);
    for route in plan.routes() {
        let every = if route.decision.query.op == Op::Attention {
            12
        } else {
            36
        };
        assert_eq!(
            (route.layers.len(), route.decision.version),
            (every, plan.version())
        );
    }
}

#[test]
fn the_query_of_an_op_has_only_the_requirements_that_apply_to_it() {
    let runtime = runtime_with_torch();
    let mut asked = request();
    asked.state_dtype = Some(Dtype::Float32);
    asked.page_size = Some(16);
    asked.state_layouts = [(Op::GatedDelta, "VK".to_owned())].into();
    let plan = plan(&runtime, &qwen3_next(4), asked).unwrap();
    let query = |op: Op| {
        let mut routes = plan.routes().iter().map(|route| &route.decision.query);
        routes.find(|query| query.op == op).unwrap()
    };
    let attention = query(Op::Attention);
    assert_eq!((attention.page_size, attention.state_dtype), (Some(16), None));
    assert_eq!(
        (attention.head_size, &attention.state_layout),
        (Some(HeadSize::from(32)), &None)
    );
    let linear = query(Op::GatedDelta);
    assert_eq!(
        (linear.page_size, linear.state_dtype),
        (None, Some(Dtype::Float32))
    );
    assert_eq!(
        (linear.head_size, linear.state_layout.as_deref()),
        (Some(HeadSize::from(16)), Some("VK"))
    );
    let conv = query(Op::ShortConv);
    assert_eq!(
        (
            conv.page_size,
            conv.state_dtype,
            conv.head_size,
            &conv.state_layout
        ),
        (None, None, None, &None)
    );
}

#[test]
fn a_lookup_outside_the_plan_lists_the_valid_keys() {
    let plan = plan(&runtime_with_torch(), &qwen3_next(8), request()).unwrap();
    let error = plan.lookup(8, Op::Attention, Phase::Decode).unwrap_err();
    assert_eq!(error.to_string(), "tiny-qwen3-next has no layer 8; valid: 0 to 7");
    assert_eq!(
        (error.code(), &error.fields()["layers"]),
        ("route_unknown_layer", &json!(8))
    );
    assert!(matches!(
        plan.lookup(usize::MAX, Op::Mla, Phase::Verify),
        Err(RouteError::UnknownLayer { .. })
    ));

    let error = plan.lookup(0, Op::Attention, Phase::Decode).unwrap_err();
    assert_eq!(error.code(), "route_other_ops");
    assert!(
        error
            .to_string()
            .contains("layer 0 of tiny-qwen3-next (gated_delta) does not run attention"),
        "{error}"
    );
    assert_eq!(error.fields()["valid"], json!(["short_conv", "gated_delta"]));

    let error = plan.lookup(0, Op::GatedDelta, Phase::Verify).unwrap_err();
    assert_eq!(error.code(), "route_phase_not_planned");
    assert_eq!(
        error.to_string(),
        "the plan for tiny-qwen3-next was made without verify; planned: \"prefill\", \"decode\""
    );
}

#[test]
fn a_layer_without_a_backend_is_named_with_every_candidate() {
    let runtime = Runtime::new();
    register(&runtime, Origin::Builtin, spec(Op::Attention, "torch"), false);
    register(&runtime, Origin::Builtin, spec(Op::ShortConv, "torch"), false);
    let mut gpu = spec(Op::GatedDelta, "gpu-only");
    gpu.capabilities.devices = vec![DeviceSupport::any(DeviceKind::Cuda)];
    register(&runtime, plugin("acme"), gpu, false);
    let error = plan(&runtime, &qwen3_next(8), request()).unwrap_err();
    assert_eq!(error.code(), "layer_no_backend");
    let fields = error.fields();
    assert_eq!(
        (&fields["op"], &fields["phase"], &fields["layers"]),
        (
            &json!("gated_delta"),
            &json!("prefill"),
            &json!([0, 1, 2, 4, 5, 6])
        )
    );
    assert_eq!(fields["rejected"][0]["reasons"][0]["kind"], "device");
    assert_eq!(
        error.to_string(),
        "layers 0-2, 4-6 of tiny-qwen3-next (gated_delta), gated_delta prefill: no backend for gated_delta prefill on cpu \
         in float32, head size 16:\n  gpu-only: does not run on cpu, only on cuda"
    );
}

#[test]
fn layers_without_an_op_are_refused_at_plan_time() {
    let runtime = runtime_with_torch();
    for (kind, what) in [(LayerKind::Mamba1, "mamba1"), (LayerKind::RgLru, "RG-LRU")] {
        let layout = Arc::new(Layout::from_kinds("other", [LayerKind::FullAttention, kind]));
        let error = plan(&runtime, &layout, request()).unwrap_err();
        assert_eq!(
            (error.code(), &error.fields()["layer"]),
            ("layer_uncovered", &json!(1))
        );
        assert!(error.to_string().contains(what), "{error}");
    }
}

#[test]
fn layers_that_run_no_op_need_no_backend() {
    let layout = Arc::new(Layout::from_kinds(
        "experts",
        [LayerKind::Moe, LayerKind::FullAttention, LayerKind::Mlp],
    ));
    let plan = plan(&runtime_with_torch(), &layout, request()).unwrap();
    assert_eq!(plan.entries().count(), 2);
    let error = plan.lookup(0, Op::Attention, Phase::Decode).unwrap_err();
    assert!(error.to_string().ends_with("it runs no op"), "{error}");
}

#[test]
fn layouts_of_one_kind_only_work_too() {
    for (kind, ops) in [(LayerKind::FullAttention, 1), (LayerKind::GatedDelta, 2)] {
        let layout = Arc::new(Layout::from_kinds("pure", [kind; 3]));
        let plan = plan(&runtime_with_torch(), &layout, request()).unwrap();
        assert_eq!(plan.entries().count(), 3 * ops * 2);
    }
}

#[test]
fn windows_need_the_feature() {
    let runtime = runtime_with_torch();
    let kinds = [
        LayerKind::FullAttention,
        LayerKind::SlidingAttention,
        LayerKind::FullAttention,
    ];
    let layout = Arc::new(Layout::from_kinds("windows", kinds));
    let error = plan(&runtime, &layout, request()).unwrap_err();
    assert_eq!(
        (error.code(), &error.fields()["layers"]),
        ("layer_no_backend", &json!([1]))
    );
    let mut windowed = spec(Op::Attention, "windowed");
    windowed.capabilities.features = [WINDOW.to_owned()].into();
    windowed.priority = -1;
    let windowed = register(&runtime, Origin::User, windowed, false);
    let plan = plan(&runtime, &layout, request()).unwrap();
    assert_eq!(plan.lookup(1, Op::Attention, Phase::Decode), Ok(windowed));
    assert_ne!(plan.lookup(2, Op::Attention, Phase::Decode), Ok(windowed));
    let layers: Vec<_> = plan.routes().iter().map(|route| route.layers.clone()).collect();
    assert_eq!(
        layers,
        [vec![0, 2], vec![1], vec![0, 2], vec![1]],
        "layers with equal requests share one decision"
    );
}

#[test]
fn bad_requests_are_refused() {
    let runtime = runtime_with_torch();
    let none = PlanRequest {
        phases: [].into(),
        ..request()
    };
    assert_eq!(
        plan(&runtime, &qwen3_next(4), none).unwrap_err().code(),
        "plan_no_phase"
    );
    let typo = PlanRequest {
        preferences: preferences([("mla", "torhc")]),
        ..request()
    };
    let error = plan(&runtime, &qwen3_next(4), typo).unwrap_err();
    assert_eq!(
        error.code(),
        "unknown_preferred_backend",
        "an error even though no layer of the model runs mla"
    );
    let narrow = BackendSpec {
        phases: [Phase::Decode].into(),
        ..spec(Op::GatedDelta, "narrow")
    };
    register(&runtime, plugin("acme"), narrow, false);
    let unfit = PlanRequest {
        preferences: preferences([("linear", "narrow")]),
        ..request()
    };
    let error = plan(&runtime, &qwen3_next(4), unfit).unwrap_err();
    assert_eq!(
        (error.code(), &error.fields()["phase"]),
        ("unfit_backend", &json!("prefill"))
    );
    assert_eq!(
        (&error.fields()["key"], &error.fields()["found"]),
        (&json!("linear"), &json!("narrow"))
    );
}

#[test]
fn a_plan_pins_its_backends_and_knows_when_it_is_stale() {
    let runtime = runtime_with_torch();
    let acme = register(&runtime, plugin("acme"), preferred("acme"), false);
    configure(&runtime, Op::GatedDelta, "acme", &json!({"scale": 2}));
    let layout = qwen3_next(4);
    let old = plan(&runtime, &layout, request()).unwrap();
    assert!(!old.is_stale(&runtime));
    drop(runtime.begin(Origin::User).commit().unwrap());
    clear(&runtime, Op::GatedDelta, "torch");
    assert!(!old.is_stale(&runtime), "commits that change nothing don't count");

    configure(&runtime, Op::GatedDelta, "acme", &json!({"scale": 3}));
    assert!(old.is_stale(&runtime));
    clear(&runtime, Op::GatedDelta, "acme");
    assert!(runtime.snapshot().get(acme).is_none());
    assert_eq!(old.lookup(0, Op::GatedDelta, Phase::Decode), Ok(acme));
    assert_eq!(old.backend(acme).unwrap().effective_config()["scale"], 2);
    let new = plan(&runtime, &layout, request()).unwrap();
    assert_ne!(new.lookup(0, Op::GatedDelta, Phase::Decode), Ok(acme));
    assert!(!new.is_stale(&runtime));
    assert!(
        new.is_stale(&runtime_with_torch()),
        "a plan is stale for every other runtime"
    );
}

#[test]
fn devices_decide_for_the_whole_plan() {
    let runtime = runtime_with_torch();
    let gpu = Device {
        kind: DeviceKind::Cuda,
        capability: Some(ComputeCapability(9, 0)),
    };
    assert!(
        plan(
            &runtime,
            &qwen3_next(4),
            PlanRequest::new(gpu.clone(), Dtype::Bfloat16)
        )
        .is_err()
    );
    for op in [Op::Attention, Op::GatedDelta, Op::ShortConv] {
        let mut triton = BackendSpec {
            priority: 10,
            ..spec(op, "triton")
        };
        triton.capabilities.devices = vec![DeviceSupport {
            min_capability: Some(ComputeCapability(8, 0)),
            ..DeviceSupport::any(DeviceKind::Cuda)
        }];
        register(&runtime, plugin("switchrail-kernels"), triton, false);
    }
    for (device, name) in [(gpu, "triton"), (cpu(), "torch")] {
        let plan = plan(
            &runtime,
            &qwen3_next(4),
            PlanRequest::new(device, Dtype::Bfloat16),
        )
        .unwrap();
        assert!(plan.backends().iter().all(|backend| backend.spec.name == name));
        assert_eq!(plan.backends().len(), 3);
    }
}

#[test]
fn a_plan_from_a_document_is_bound_to_the_runtimes_backends() {
    let runtime = runtime_with_torch();
    let acme = preferred("acme");
    register(&runtime, plugin("acme"), acme.clone(), false);
    let made = plan(&runtime, &qwen3_next(4), request()).unwrap();
    let sent: RoutePlan = serde_json::from_str(&serde_json::to_string(&made).unwrap()).unwrap();
    assert_eq!(
        made.bind(&runtime.snapshot()).unwrap(),
        made.backends(),
        "in its own runtime they are the same"
    );

    // As in another process, the ids differ. Here `acme` is a native backend.
    let other = Runtime::new();
    register(&other, Origin::User, spec(Op::Kda, "first"), false);
    let transaction = other.begin(plugin("acme"));
    let entry = Entry::Native(Arc::new(Native));
    transaction.registrar().add(acme.clone(), entry, false).unwrap();
    transaction.commit().unwrap();
    let error = sent.bind(&other.snapshot()).unwrap_err();
    assert_eq!(error.code(), "plan_backend_gone");
    assert_eq!(error.fields()["found"], json!([]));
    for op in [Op::Attention, Op::GatedDelta, Op::ShortConv] {
        register(&other, Origin::Builtin, spec(op, "torch"), false);
    }
    let bound = sent.bind(&other.snapshot()).unwrap();
    let names = |backends: &[Arc<Registration>]| -> Vec<_> {
        let each = backends
            .iter()
            .map(|backend| (backend.spec.op, backend.spec.name.clone()));
        each.collect()
    };
    assert_eq!(names(&bound), names(sent.backends()));
    assert_ne!(bound[0].id, sent.backends()[0].id);
    let native = bound.iter().find(|backend| backend.spec.name == "acme").unwrap();
    assert!(native.entry.native::<Native>().is_some());
}

#[test]
fn a_plan_is_not_bound_to_another_backend_of_the_same_name() {
    let runtime = runtime_with_torch();
    let acme = preferred("acme");
    let id = register(&runtime, plugin("acme"), acme.clone(), false);
    configure(&runtime, Op::GatedDelta, "acme", &json!({"scale": 2}));
    let old = plan(&runtime, &qwen3_next(4), request()).unwrap();
    configure(&runtime, Op::GatedDelta, "acme", &json!({"scale": 3}));
    let bound = old.bind(&runtime.snapshot()).unwrap();
    assert!(
        bound.iter().any(|backend| backend.id == id),
        "a changed configuration does not prevent binding"
    );
    clear(&runtime, Op::GatedDelta, "acme");
    let changed = [
        (plugin("other"), acme.clone()),
        (
            plugin("acme"),
            BackendSpec {
                path: "elsewhere:Backend".to_owned(),
                ..acme
            },
        ),
    ];
    for (origin, spec) in changed {
        register(&runtime, origin.clone(), spec, false);
        let error = old.bind(&runtime.snapshot()).unwrap_err();
        assert_eq!(error.wanted.id, id);
        assert_eq!(error.found[0].origin, origin);
        assert!(error.to_string().contains("make a new plan"), "{error}");
        clear(&runtime, Op::GatedDelta, "acme");
    }
}

#[derive(Debug)]
struct Native;

impl switchrail::NativeBackend for Native {
    fn check_config(&self, _: &switchrail::Config) -> Result<(), String> {
        Ok(())
    }
}
