//! Classes of loads: which backend serves which load, between the measured loads and beyond them.

mod common;

use std::{collections::BTreeSet, sync::Arc};

use common::{plugin, preferences, query, qwen3_next, register, request, runtime_with_torch, sample, spec};
use proptest::prelude::*;
use serde_json::json;
use switchrail::{
    BackendSpec, Because, Decision, Dtype, FingerprintInputs, HeadCount, Layout, Load, Measurement, Op,
    Origin, Packages, Phase, PlanError, PlanRequest, Preferences, Query, Reason, RoutePlan, Runtime, Sample,
};

const OP: Op = Op::GatedDelta;

/// Backends that fit, in order of precedence.
fn runtime(names: &[&str]) -> Arc<Runtime> {
    let runtime = Runtime::new();
    for (name, priority) in names.iter().zip((0..100).rev()) {
        let spec = BackendSpec {
            priority,
            ..spec(OP, name)
        };
        register(&runtime, plugin("acme"), spec, false);
    }
    runtime
}

fn decide(names: &[&str], samples: Vec<Sample>) -> Decision {
    let query = Query {
        measured: samples,
        ..query(OP)
    };
    runtime(names)
        .snapshot()
        .resolve(&query, &Preferences::default(), &Packages::default())
        .unwrap()
}

fn at(decision: &Decision, rows: u64, length: u64) -> &str {
    &decision.at(Load { rows, length }).name
}

/// Times for 512 to 32,768 rows in 1 to 64 sequences. `split` divides the time axis and is best for few
/// sequences, `wide` runs sequences in parallel and is best for many, `plain` is best for few rows.
fn delta() -> Vec<Sample> {
    let lines = [512_u64, 2_048, 8_192, 32_768].into_iter();
    let loads = lines.flat_map(|rows| [1, 4, 16, 64].map(|count| (rows, rows / count)));
    loads
        .map(|(rows, length)| sample(rows, length, &real(rows, length)))
        .collect()
}

fn real(rows: u64, length: u64) -> [(&'static str, u64); 3] {
    [
        ("plain", 2_500 + 30 * rows),
        ("split", 40_000 + 20 * rows),
        ("wide", 2_000 + (13 * rows).max(47 * length)),
    ]
}

#[test]
fn each_load_goes_to_the_backend_that_is_fastest_there() {
    let decision = decide(&["plain", "split", "wide"], delta());
    for sample in delta() {
        let least = sample.nanoseconds.values().min();
        let found = &decision.at(sample.load).name;
        assert!(
            sample.nanoseconds[found] * 100 <= least.unwrap() * 101,
            "{sample:?}"
        );
    }
    // Loads that are not in the samples. The interpolated times must approximate `real`.
    for (rows, length) in [
        (32_768, 28_672),
        (32_048, 30_000),
        (32_768, 4_096),
        (20_000, 700),
        (3_000, 3_000),
        (700, 200),
    ] {
        let times = real(rows, length);
        let least = times.iter().map(|(_, time)| *time).min().unwrap();
        let name = at(&decision, rows, length);
        let found = times.iter().find(|(other, _)| *other == name).unwrap().1;
        assert!(
            found * 100 <= least * 103,
            "{rows} {length}: {name} takes {found}, the fastest {least}"
        );
    }
    assert_eq!(at(&decision, 32_768, 28_672), "split");
    assert_eq!(at(&decision, 32_768, 4_096), "wide");
    assert_eq!(decision.chosen.name, "wide", "it has the shortest mean time");
    assert!(matches!(decision.because, Because::MeasuredByLoad { .. }));
    assert!(
        decision.because.to_string().ends_with("; others serve the rest"),
        "{}",
        decision.because
    );
    let serving: BTreeSet<_> = decision
        .serving()
        .iter()
        .map(|backend| backend.name.as_str())
        .collect();
    assert!(serving.is_superset(&["split", "wide"].into()), "{serving:?}");
}

#[test]
fn beyond_the_measured_loads_the_nearest_time_counts() {
    let decision = decide(&["plain", "split", "wide"], delta());
    assert_eq!(at(&decision, 1 << 20, 1 << 20), at(&decision, 32_768, 32_768));
    assert_eq!(at(&decision, 1 << 20, 4_096), at(&decision, 32_768, 512));
    assert_eq!(at(&decision, 1, 1), at(&decision, 512, 512));
    assert_eq!(at(&decision, 0, 0), at(&decision, 512, 512));
    assert_eq!(at(&decision, u64::MAX, 1), at(&decision, 32_768, 512));
}

#[test]
fn a_backend_that_is_never_the_fastest_serves_nothing_and_its_rejection_has_the_times() {
    let mut samples = delta();
    for sample in &mut samples {
        let most = *sample.nanoseconds.values().max().unwrap();
        sample.nanoseconds.insert("late".into(), most + 1);
    }
    let decision = decide(&["plain", "split", "wide", "late", "new"], samples);
    assert!(decision.serving().iter().all(|backend| backend.name != "late"));
    let reasons: Vec<_> = decision
        .rejected
        .iter()
        .map(|other| (&*other.backend.name, &other.reasons[..]))
        .collect();
    let Because::MeasuredByLoad { nanoseconds: chosen } = decision.because else {
        panic!("{:?}", decision.because)
    };
    assert!(
        matches!(
            reasons[..],
            [
                ("late", [Reason::Slower { nanoseconds, chosen: other }]),
                ("new", [Reason::NotMeasured { .. }])
            ] if *other == chosen && *nanoseconds > chosen
        ),
        "{reasons:?}"
    );
}

#[test]
fn a_backend_does_not_serve_loads_at_which_it_was_not_timed() {
    let mut samples = delta();
    for sample in &mut samples {
        if sample.load.rows == 32_768 {
            sample.nanoseconds.remove("split");
        }
    }
    let decision = decide(&["plain", "split", "wide"], samples);
    assert_eq!(at(&decision, 32_768, 32_768), "plain");
    assert_eq!(at(&decision, 20_000, 20_000), "plain", "nor loads near them");
    assert_eq!(at(&decision, 8_192, 8_192), "split");
}

#[test]
fn a_backend_that_was_not_timed_everywhere_does_not_serve_batches_of_unknown_size() {
    let samples = vec![
        sample(64, 64, &[("all", 100), ("few", 50)]),
        sample(65_536, 65_536, &[("all", 1_000)]),
    ];
    let decision = decide(&["few", "all"], samples);
    assert_eq!(decision.chosen.name, "all");
    assert_eq!([64, 65_536].map(|rows| at(&decision, rows, rows)), ["few", "all"]);
}

#[test]
fn extreme_numbers_do_not_overflow() {
    let most = u64::MAX;
    let samples = vec![
        sample(most, 1, &[("a", most), ("b", 1)]),
        sample(1, most, &[("a", 0), ("b", most)]),
    ];
    let decision = decide(&["a", "b", "c"], samples);
    assert_eq!(at(&decision, most, 1), "b");
    assert_eq!(at(&decision, 1, most), "a");
    let told = decision.rejected[0].reasons[0].to_string();
    assert!(told.starts_with("fits, but was not measured here"), "{told}");
}

#[test]
fn a_backend_that_is_second_at_all_measured_loads_may_be_first_between_them() {
    let samples = vec![
        sample(1_024, 1_024, &[("a", 100), ("b", 120), ("c", 1_000)]),
        sample(65_536, 65_536, &[("a", 1_000), ("b", 120), ("c", 100)]),
    ];
    let decision = decide(&["a", "b", "c"], samples);
    let found = [1_024, 8_192, 65_536].map(|rows| at(&decision, rows, rows));
    assert_eq!(found, ["a", "b", "c"]);
    assert_eq!(decision.serving().len(), 3);
}

#[test]
fn a_measured_load_goes_to_the_fastest_backend_there_even_if_it_was_not_timed_at_neighbouring_loads() {
    let samples = vec![
        sample(1_024, 1_024, &[("slow", 500)]),
        sample(1_024, 256, &[("fast", 100), ("slow", 500)]),
        sample(4_096, 4_096, &[("fast", 100), ("slow", 500)]),
        sample(4_096, 1_024, &[("fast", 100), ("slow", 500)]),
    ];
    let decision = decide(&["fast", "slow"], samples);
    assert_eq!(
        [(1_024, 1_024), (2_048, 2_048)].map(|(rows, length)| at(&decision, rows, length)),
        ["slow", "slow"]
    );
    assert_eq!(
        [(1_024, 256), (2_048, 512)].map(|(rows, length)| at(&decision, rows, length)),
        ["fast", "fast"]
    );
}

#[test]
fn the_threshold_between_two_backends_is_where_their_times_cross() {
    // `a` leads by one octave, then `b` by three, so they cross a quarter of the way from 1 to 256 sequences,
    // at 4
    let samples = vec![
        sample(65_536, 65_536, &[("a", 100), ("b", 200)]),
        sample(65_536, 256, &[("a", 800), ("b", 100)]),
    ];
    let decision = decide(&["a", "b"], samples);
    let sequences = [1, 3, 4, 5, 200].map(|count| at(&decision, 65_536, 65_536 / count));
    assert_eq!(sequences, ["a", "a", "b", "b", "b"]);
}

#[test]
fn nearly_equal_times_give_the_same_classes() {
    let decision = |time| {
        let samples = vec![
            sample(65_536, 65_536, &[("a", 100_000), ("b", 200_000)]),
            sample(65_536, 256, &[("a", time), ("b", 100_000)]),
        ];
        decide(&["a", "b"], samples).classes
    };
    assert_eq!(decision(800_000), decision(803_000));
    assert_ne!(decision(800_000), decision(1_200_000));
}

#[test]
fn classes_of_a_paged_op_depend_on_tokens_read_in_decode_and_on_a_ratio_in_prefill() {
    let decision = |phase, samples| {
        let runtime = Runtime::new();
        for name in ["near", "far"] {
            register(&runtime, plugin("acme"), spec(Op::Mla, name), false);
        }
        let query = Query {
            phase,
            measured: samples,
            ..query(Op::Mla)
        };
        let found = runtime
            .snapshot()
            .resolve(&query, &Preferences::default(), &Packages::default());
        found.unwrap()
    };
    let times = [("near", 10), ("far", 20)];
    let turned = [("near", 20), ("far", 10)];
    let decode = decision(
        Phase::Decode,
        vec![sample(32, 512, &times), sample(32, 32_768, &turned)],
    );
    // the times cross at 131,072 tokens in total
    assert_eq!([at(&decode, 16, 8_191), at(&decode, 16, 8_192)], ["near", "far"]);
    assert_eq!([at(&decode, 64, 2_047), at(&decode, 64, 2_048)], ["near", "far"]);
    let prefill = decision(
        Phase::Prefill,
        vec![sample(4_096, 2_048, &times), sample(4_096, 32_768, &turned)],
    );
    assert_eq!(
        [at(&prefill, 4_000, 2_000), at(&prefill, 5_000, 2_500)],
        ["near", "near"]
    );
    assert_eq!(
        [at(&prefill, 4_000, 30_000), at(&prefill, 5_000, 40_000)],
        ["far", "far"]
    );
}

#[test]
fn equal_times_go_to_the_first_by_precedence() {
    let times = [("a", 700_000), ("b", 705_000)];
    let samples = vec![sample(1, 1, &times), sample(64, 64, &times)];
    for names in [["a", "b"], ["b", "a"]] {
        let decision = decide(&names, samples.clone());
        assert_eq!((&*decision.chosen.name, &decision.classes), (names[0], &None));
    }
}

#[test]
fn classes_of_a_paged_op_depend_on_the_cached_tokens() {
    let runtime = Runtime::new();
    for name in ["near", "far"] {
        register(&runtime, plugin("acme"), spec(Op::Mla, name), false);
    }
    let query = Query {
        measured: vec![
            sample(32, 1_024, &[("near", 10), ("far", 20)]),
            sample(32, 65_536, &[("near", 400), ("far", 100)]),
        ],
        ..query(Op::Mla)
    };
    let decision = runtime
        .snapshot()
        .resolve(&query, &Preferences::default(), &Packages::default())
        .unwrap();
    let of = |cached| {
        let load = Load::of(Op::Mla, std::iter::repeat_n((1, cached), 32));
        decision.at(load).name.as_str()
    };
    assert_eq!(
        [of(1_000), of(3_000), of(20_000), of(100_000)],
        ["near", "near", "far", "far"]
    );
}

#[test]
fn a_layer_with_a_window_uses_the_times_at_its_window() {
    let runtime = runtime_with_torch();
    let mut windowed = spec(Op::Attention, "far");
    windowed.capabilities.features = ["window".to_owned()].into();
    let near = BackendSpec {
        name: "near".to_owned(),
        priority: 1,
        ..windowed.clone()
    };
    for spec in [windowed, near] {
        register(&runtime, plugin("acme"), spec, false);
    }
    let config = json!({
        "model_type": "lfm3", "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "hidden_size": 64, "head_dim": 16, "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"],
    });
    let layout = Arc::new(Layout::from_config(&config).unwrap());
    let measurement = Measurement {
        op: Op::Attention,
        phase: Phase::Decode,
        dtype: Dtype::Float32,
        head_size: Some(16.into()),
        heads: None,
        no_decay: false,
        samples: vec![
            sample(8, 128, &[("near", 10), ("far", 20)]),
            sample(8, 65_536, &[("near", 400), ("far", 100)]),
        ],
    };
    let request = PlanRequest {
        measurements: vec![measurement],
        ..request()
    };
    let plan = RoutePlan::new(&runtime.snapshot(), layout, request).unwrap();
    let tables = plan.select(Phase::Decode, &[(1, 65_536); 8]).unwrap();
    let names = plan
        .selected(&tables)
        .map(|(_, _, id)| plan.backend(id).unwrap().spec.name.as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["near", "far"]);
}

#[test]
fn a_backend_that_the_user_chose_serves_all_loads() {
    let query = Query {
        measured: delta(),
        ..query(OP)
    };
    let decision = runtime(&["plain", "split", "wide"])
        .snapshot()
        .resolve(
            &query,
            &preferences([("linear.decode", "plain")]),
            &Packages::default(),
        )
        .unwrap();
    assert_eq!((&decision.classes, at(&decision, 32_768, 512)), (&None, "plain"));
}

#[test]
fn a_query_gets_the_times_of_its_op_phase_dtype_and_head_size_with_the_nearest_heads_and_gates() {
    let known = |heads, no_decay, time| Measurement {
        op: OP,
        phase: Phase::Decode,
        dtype: Dtype::Float32,
        head_size: Some(64.into()),
        heads,
        no_decay,
        samples: vec![sample(1, 1, &[("torch", time)])],
    };
    let all = [
        known(Some(HeadCount(16, 32)), false, 1),
        known(Some(HeadCount(4, 8)), false, 2),
        known(Some(HeadCount(16, 32)), true, 3),
    ];
    let asked = Query {
        head_size: Some(64.into()),
        ..query(OP)
    };
    let of = |query: &Query| {
        let samples = Measurement::of(query, &all);
        samples.first().map(|sample| sample.nanoseconds["torch"])
    };
    let with = |q, v, no_decay| Query {
        heads: Some(HeadCount(q, v)),
        no_decay,
        ..asked.clone()
    };
    assert_eq!(of(&asked), Some(1));
    assert_eq!(of(&with(16, 16, false)), Some(1));
    assert_eq!(of(&with(2, 4, false)), Some(2));
    assert_eq!(of(&with(4, 8, true)), Some(3), "gates come first");
    assert_eq!(of(&query(OP)), None, "another head size, or none");
    let others = [
        Query {
            op: Op::Lightning,
            ..asked.clone()
        },
        Query {
            phase: Phase::Prefill,
            ..asked.clone()
        },
        Query {
            dtype: Dtype::Bfloat16,
            ..asked
        },
    ];
    assert!(others.iter().all(|other| of(other).is_none()));
}

/// A request with measured times of `plain`, `split` and `wide` in prefill.
fn measured_request(layout: &Layout) -> PlanRequest {
    let kind = layout.layers()[0].kind;
    let shape = layout.shape(kind, OP);
    let head_size = shape.head_size_k.map(Into::into);
    let measurement = Measurement {
        op: OP,
        phase: Phase::Prefill,
        dtype: Dtype::Float32,
        head_size,
        heads: None,
        no_decay: false,
        samples: delta(),
    };
    PlanRequest {
        measurements: vec![measurement],
        ..request()
    }
}

fn registered() -> Arc<Runtime> {
    let runtime = runtime_with_torch();
    for name in ["plain", "split", "wide"] {
        let spec = BackendSpec {
            priority: 10,
            ..spec(OP, name)
        };
        register(&runtime, plugin("acme"), spec, false);
    }
    runtime
}

#[test]
fn a_plan_pins_the_backends_of_all_classes_and_selects_tables_for_each_batch() {
    let (runtime, layout) = (registered(), qwen3_next(8));
    let plan = RoutePlan::new(
        &runtime.snapshot(),
        Arc::clone(&layout),
        measured_request(&layout),
    )
    .unwrap();
    let route = plan
        .routes()
        .iter()
        .find(|route| route.decision.classes.is_some())
        .unwrap();
    for backend in route.decision.serving() {
        assert_eq!(plan.backend(backend.id).unwrap().spec.name, backend.name);
    }
    assert!(plan.is_split(Phase::Prefill) && !plan.is_split(Phase::Decode));
    let cases: [&[u64]; 4] = [&[28_672, 4_096], &[1_024; 32], &[30_000, 32, 32], &[100]];
    for lengths in cases {
        let sequences: Vec<_> = lengths.iter().map(|length| (*length, *length)).collect();
        let load = Load::of(OP, sequences.clone());
        let tables = plan.select(Phase::Prefill, &sequences).unwrap();
        for (layer, op, id) in plan.selected(&tables) {
            assert_eq!(plan.lookup_selected(layer, op, &tables), Ok(id));
            let expected = if op == OP {
                route.decision.at(load).id
            } else {
                plan.lookup(layer, op, Phase::Prefill).unwrap()
            };
            assert_eq!(id, expected, "{lengths:?} {layer} {op}");
        }
        assert_eq!(plan.selected(&tables).count(), 8 + 6);
    }
    let tables = plan.select(Phase::Decode, &[(1, 1)]).unwrap();
    assert_eq!(
        plan.lookup_selected(0, OP, &tables),
        plan.lookup(0, OP, Phase::Decode)
    );
    assert_eq!(plan.lookup(0, OP, Phase::Prefill), Ok(route.decision.chosen.id));
    let error = plan.lookup_selected(8, OP, &tables).unwrap_err();
    assert_eq!(error.to_string(), "tiny-qwen3-next has no layer 8; valid: 0 to 7");
    assert!(plan.lookup_selected(3, OP, &tables).is_err(), "it runs attention");
    assert!(
        plan.select(Phase::Verify, &[])
            .unwrap_err()
            .to_string()
            .contains("made without verify")
    );
}

#[test]
fn a_document_keeps_the_classes_and_the_fingerprint_covers_them() {
    let (runtime, layout) = (registered(), qwen3_next(8));
    let digest = |plan: &RoutePlan| {
        let inputs = FingerprintInputs {
            plugins: &[],
            hooks: &[],
            snapshot: &runtime.snapshot(),
            plans: &[plan],
        };
        switchrail::Fingerprint::new(inputs).digest
    };
    let plan = |request| RoutePlan::new(&runtime.snapshot(), Arc::clone(&layout), request).unwrap();
    let request = measured_request(&layout);
    let first = plan(request.clone());
    let text = serde_json::to_string(&first).unwrap();
    let read: RoutePlan = serde_json::from_str(&text).unwrap();
    assert_eq!(read, first);
    let batch = [(30_000, 30_000), (32, 32)];
    assert_eq!(
        read.select(Phase::Prefill, &batch),
        first.select(Phase::Prefill, &batch)
    );
    assert_eq!(digest(&read), digest(&first));

    let mut twice = request.clone();
    for sample in &mut twice.measurements[0].samples {
        sample.nanoseconds.values_mut().for_each(|time| *time *= 2);
    }
    assert_eq!(digest(&plan(twice)), digest(&first), "the classes are the same");
    let mut other = request;
    for sample in &mut other.measurements[0].samples {
        *sample.nanoseconds.get_mut("split").unwrap() /= 2;
    }
    assert_ne!(digest(&plan(other)), digest(&first));

    let bands = json!([[0, [[0, 0], [1, 1]]]]);
    let broken = [
        json!([]),
        json!([[0, []]]),
        json!([[0, [[0, 9]]]]),
        json!([[0, [[1, 0], [1, 1]]]]),
        json!([[1, [[0, 0]]], [0, [[0, 1]]]]),
    ];
    let read = |bands: &serde_json::Value| {
        let mut document: serde_json::Value = serde_json::from_str(&text).unwrap();
        let routes = document["routes"].as_array_mut().unwrap();
        let route = routes
            .iter_mut()
            .find(|route| route["decision"]["classes"].is_object())
            .unwrap();
        route["decision"]["classes"]["bands"] = bands.clone();
        serde_json::from_value::<RoutePlan>(document)
    };
    assert!(read(&bands).is_ok());
    for bands in &broken {
        let error = read(bands).unwrap_err().to_string();
        assert!(error.contains("the classes have no thresholds"), "{error}");
    }
}

/// Registers a backend that supports these state layouts.
fn laid_out(runtime: &Arc<Runtime>, name: &str, priority: i32, layouts: &[&str]) {
    let mut spec = BackendSpec {
        priority,
        ..spec(OP, name)
    };
    spec.capabilities.state_layouts = layouts.iter().map(|layout| (*layout).to_owned()).collect();
    register(runtime, Origin::User, spec, false);
}

#[test]
fn all_backends_of_an_op_in_a_plan_use_the_same_state_layout() {
    let runtime = runtime_with_torch();
    laid_out(&runtime, "kv", 20, &["KV"]);
    laid_out(&runtime, "vk", 10, &["VK"]);
    laid_out(&runtime, "both", 5, &["VK", "KV"]);
    let layout = qwen3_next(4);
    let plan = |choices: Preferences, layouts: &[(Op, String)]| {
        let request = PlanRequest {
            preferences: choices,
            state_layouts: layouts.iter().cloned().collect(),
            ..request()
        };
        RoutePlan::new(&runtime.snapshot(), Arc::clone(&layout), request)
    };
    let names = |plan: &RoutePlan| {
        [Phase::Prefill, Phase::Decode].map(|phase| {
            plan.backend(plan.lookup(0, OP, phase).unwrap())
                .unwrap()
                .spec
                .name
                .clone()
        })
    };
    let none = Preferences::default();
    assert_eq!(names(&plan(none.clone(), &[]).unwrap()), ["kv", "kv"]);
    assert_eq!(
        names(&plan(preferences([("gated_delta.decode", "vk")]), &[]).unwrap()),
        ["vk", "vk"]
    );
    assert_eq!(
        names(&plan(preferences([("gated_delta.prefill", "vk")]), &[]).unwrap()),
        ["vk", "vk"]
    );
    let mixed = preferences([("gated_delta.prefill", "both"), ("gated_delta.decode", "vk")]);
    assert_eq!(names(&plan(mixed.clone(), &[]).unwrap()), ["both", "vk"]);
    assert!(plan(mixed, &[(OP, "KV".into())]).is_err());
    let torn = preferences([("gated_delta.prefill", "kv"), ("gated_delta.decode", "vk")]);
    let error = plan(torn, &[]).unwrap_err();
    assert!(matches!(error, PlanError::Unroutable { .. }));
    assert!(
        error
            .to_string()
            .contains("does not take state layout KV, only VK"),
        "{error}"
    );
}

#[test]
fn classes_mix_only_backends_with_one_layout() {
    let runtime = runtime_with_torch();
    laid_out(&runtime, "plain", 20, &["VK"]);
    laid_out(&runtime, "split", 10, &["KV"]);
    laid_out(&runtime, "wide", 5, &["VK", "KV"]);
    let layout = qwen3_next(4);
    let request = measured_request(&layout);
    let plan = RoutePlan::new(&runtime.snapshot(), Arc::clone(&layout), request).unwrap();
    let decisions = || {
        plan.routes()
            .iter()
            .map(|route| &route.decision)
            .filter(|decision| decision.query.op == OP)
    };
    for decision in decisions() {
        for backend in decision.serving() {
            let layouts = &plan.backend(backend.id).unwrap().spec.capabilities.state_layouts;
            assert!(layouts.is_empty() || layouts.contains(decision.query.state_layout.as_ref().unwrap()));
        }
    }
    let asked: BTreeSet<_> = decisions()
        .map(|decision| decision.query.state_layout.clone())
        .collect();
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert!(decisions().any(|decision| decision.serving().len() > 1));
}

fn times() -> impl Strategy<Value = Vec<Sample>> {
    let each = (
        0_u32..16,
        0_u32..8,
        prop::collection::vec(prop::option::weighted(0.9, 1_u64..1_000_000_000), 3),
    );
    prop::collection::vec(each, 1..30).prop_map(|samples| {
        let sample = |(rows, count, times): (u32, u32, Vec<Option<u64>>)| {
            let names = ["plain", "split", "wide"].into_iter().zip(times);
            let times: Vec<_> = names.filter_map(|(name, time)| Some((name, time?))).collect();
            sample(1 << rows, 1 << rows.saturating_sub(count), &times)
        };
        samples.into_iter().map(sample).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn every_load_goes_to_a_serving_backend_whatever_the_times(samples in times(), loads in prop::collection::vec((0_u64..1 << 40, 0_u64..1 << 20), 20)) {
        let decision = decide(&["plain", "split", "wide"], samples.clone());
        for (rows, length) in loads {
            let found = decision.at(Load { rows, length });
            prop_assert!(decision.serving().contains(found));
        }
        prop_assert_eq!(&decision, &decide(&["plain", "split", "wide"], samples.clone()));
        let text = serde_json::to_string(&decision).unwrap();
        prop_assert_eq!(&serde_json::from_str::<Decision>(&text).unwrap(), &decision);
        // If all backends were measured at a load, the selected one is the fastest or within the tolerance.
        let all = samples.iter().filter(|sample| sample.nanoseconds.len() == 3);
        for sample in all.filter(|sample| samples.iter().filter(|other| other.load == sample.load).count() == 1) {
            if matches!(decision.because, Because::MeasuredByLoad { .. } | Because::Measured { .. }) {
                let found = sample.nanoseconds[&decision.at(sample.load).name];
                let least = *sample.nanoseconds.values().min().unwrap();
                prop_assert!(found == least || found * 1_000 <= least * 1_011 + 1_000, "{found} {least}");
            }
        }
    }

    #[test]
    fn between_two_samples_at_most_one_threshold_separates_their_fastest_backends(times in prop::collection::vec(prop::array::uniform3(1_u64..1_000_000_000), 2..8)) {
        let samples = |factor: u64| -> Vec<Sample> {
            let names = ["plain", "split", "wide"];
            let of = |(index, times): (usize, &[u64; 3])| {
                let times = [0, 1, 2].map(|each| (names[each], factor * times[each]));
                sample(1 << 20, 1 << (20 - 2 * index), &times)
            };
            times.iter().enumerate().map(of).collect()
        };
        let names = ["plain", "split", "wide"];
        let decision = decide(&names, samples(1));
        prop_assert_eq!(&decision.classes, &decide(&names, samples(2)).classes);
        for index in 0..times.len() - 1 {
            let (long, short) = (1_u64 << (20 - 2 * index), 1_u64 << (18 - 2 * index));
            let lengths = (0..=12).map(|step| long - (long - short) * step / 12);
            let mut found: Vec<&str> = lengths.map(|length| at(&decision, 1 << 20, length)).collect();
            let ends = [found[0], found[12]];
            found.dedup();
            prop_assert_eq!(found, if ends[0] == ends[1] { vec![ends[0]] } else { ends.to_vec() });
        }
    }

    #[test]
    fn between_two_measured_numbers_of_rows_only_backends_timed_at_both_serve(low in 0_u64..3, high in 0_u64..3, rows in 300_u64..1 << 12) {
        let all = [("plain", 200), ("split", 200), ("wide", 200)];
        let but = |lacking: u64, fast: usize| {
            let mut times = all;
            times[fast].1 = 100;
            let kept = (0..).zip(times).filter(|(index, _)| *index != lacking).map(|(_, time)| time);
            kept.collect::<Vec<_>>()
        };
        // The backend that is the fastest with few rows is not timed with many.
        let (fast_low, fast_high) = (usize::try_from(low).unwrap(), usize::try_from(high).unwrap());
        let samples = vec![
            sample(1 << 8, 1 << 8, &but(9, fast_low)),
            sample(1 << 12, 1 << 12, &but(low, fast_high)),
        ];
        let decision = decide(&["plain", "split", "wide"], samples);
        let serving = at(&decision, rows, rows);
        prop_assert_ne!(serving, all[fast_low].0);
        prop_assert_eq!(at(&decision, 1 << 8, 1 << 8), all[fast_low].0);
    }
}
