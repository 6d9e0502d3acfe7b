//! Tests of the JSON form of all documents.

mod common;

use std::fmt::Debug;

use common::{
    configure, plugin, preferences, query, qwen3_next, register, request, runtime_with_torch, sample, spec,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use switchrail::{
    BackendSpec, Commit, ComputeCapability, Decision, DeviceSupport, Dtype, Entry, Fingerprint,
    FingerprintInputs, HeadCount, HeadSize, Measurement, Op, OrderItem, Origin, Packages, Phase, PlanRequest,
    Preferences, Query, RoutePlan, Runtime, SCHEMA_VERSION, Snapshot,
};

/// Serialises and deserialises a value; returns the JSON.
fn round_trip<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) -> Value {
    let text = serde_json::to_string(value).unwrap();
    assert_eq!(&serde_json::from_str::<T>(&text).unwrap(), value);
    serde_json::from_str(&text).unwrap()
}

/// Like [`round_trip`]; also checks that another schema version, or none, is refused.
fn document<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) -> Value {
    let json = round_trip(value);
    assert_eq!(json["schema"], SCHEMA_VERSION);
    let mut other = json.clone();
    other["schema"] = (SCHEMA_VERSION + 1).into();
    let error = serde_json::from_value::<T>(other).unwrap_err().to_string();
    let expected = format!(
        "unknown schema version {}; this build reads version {SCHEMA_VERSION}",
        SCHEMA_VERSION + 1
    );
    assert!(error.contains(&expected), "{error}");
    let mut without = json.clone();
    without.as_object_mut().unwrap().remove("schema");
    assert!(
        serde_json::from_value::<T>(without)
            .unwrap_err()
            .to_string()
            .contains("schema")
    );
    json
}

fn rich_spec() -> BackendSpec {
    let mut rich = spec(Op::GatedDelta, "acme");
    rich.capabilities.devices.push(DeviceSupport {
        kind: "oot:acme".parse().unwrap(),
        min_capability: Some(ComputeCapability(8, 0)),
        max_capability: None,
    });
    rich.capabilities.dtypes = ["float32".parse().unwrap(), "bfloat16".parse().unwrap()].into();
    rich.capabilities.head_sizes = [HeadSize::from(16), HeadSize { k: 576, v: 512 }].into();
    rich.capabilities.packages = vec!["acme-kernels >= 1.2".parse().unwrap()];
    rich.capabilities.features = ["raw_gates".to_owned()].into();
    rich.config
        .clone_from(json!({"scale": 1.5, "modes": ["a", null]}).as_object().unwrap());
    rich
}

fn packages() -> Packages {
    [("acme-kernels", "1.3"), ("torch", "2.11.0+cpu")]
        .into_iter()
        .collect()
}

#[test]
fn specs_and_requests_read_what_they_write() {
    let json = round_trip(&rich_spec());
    assert_eq!(json["capabilities"]["head_sizes"], json!([16, [576, 512]]));
    assert_eq!(json["capabilities"]["packages"], json!(["acme-kernels>=1.2"]));
    assert_eq!(
        json["capabilities"]["devices"][1]["min_capability"],
        json!([8, 0])
    );
    round_trip(&OrderItem {
        key: "a".into(),
        before: vec!["b".into()],
        ..OrderItem::default()
    });
    round_trip(&Query {
        head_size: Some(16.into()),
        heads: Some(HeadCount(16, 32)),
        no_decay: true,
        measured: vec![sample(8, 2, &[("torch", 12_300)])],
        ..query(Op::Kda)
    });
    let mut rich = request();
    rich.preferences = preferences([("linear.decode", "acme"), ("attention", "auto")]);
    rich.packages = packages();
    rich.state_layouts = [(Op::Kda, "VK".to_owned())].into();
    rich.measurements = vec![Measurement {
        op: Op::Kda,
        phase: Phase::Decode,
        dtype: Dtype::Bfloat16,
        head_size: Some(128.into()),
        heads: Some(HeadCount(16, 32)),
        no_decay: true,
        samples: vec![sample(8, 2, &[("torch", 12_300)])],
    }];
    assert_eq!(
        round_trip(&rich)["preferences"],
        json!({"attention": "auto", "linear.decode": "acme"})
    );
}

#[test]
fn a_misspelt_field_is_refused() {
    let mut json = serde_json::to_value(rich_spec()).unwrap();
    json["priorty"] = 3.into();
    assert!(
        serde_json::from_value::<BackendSpec>(json)
            .unwrap_err()
            .to_string()
            .contains("priorty")
    );
    let minimal = json!({
        "name": "acme", "op": "kda", "phases": ["decode"], "path": "a:B",
        "capabilities": {"devices": [{"kind": "cpu"}]},
    });
    let spec: BackendSpec = serde_json::from_value(minimal.clone()).unwrap();
    assert_eq!((spec.priority, spec.capabilities.dtypes.len()), (0, 0));
    let mut capabilities = minimal;
    capabilities["capabilities"]["dtype"] = json!(["float32"]);
    assert!(
        serde_json::from_value::<BackendSpec>(capabilities)
            .unwrap_err()
            .to_string()
            .contains("`dtype`")
    );
    let mut asked = serde_json::to_value(request()).unwrap();
    asked["stat_dtype"] = "float32".into();
    assert!(serde_json::from_value::<PlanRequest>(asked).is_err());
}

#[test]
fn documents_read_what_they_write_and_refuse_other_schemas() {
    let runtime = runtime_with_torch();
    let transaction = runtime.begin(plugin("acme"));
    transaction
        .registrar()
        .add(rich_spec(), Entry::Foreign, false)
        .unwrap();
    let commit: Commit = (*transaction.commit().unwrap()).clone();
    assert_eq!(document(&commit)["changes"][0]["kind"], "add");
    configure(&runtime, Op::GatedDelta, "acme", &json!({"scale": 2.5}));
    let snapshot: Snapshot = (*runtime.snapshot()).clone();
    assert_eq!(document(&snapshot)["backends"].as_array().unwrap().len(), 4);

    let decision: Decision = snapshot
        .resolve(&query(Op::GatedDelta), &Preferences::default(), &packages())
        .unwrap();
    let json = document(&decision);
    assert_eq!(
        (&json["chosen"]["name"], &json["version"]),
        (&json!("acme"), &json!(snapshot.version()))
    );
    assert_eq!(
        json["rejected"][0]["reasons"],
        json!([{"kind": "later_in_order", "priority": 0}])
    );

    let mut rich = request();
    rich.packages = packages();
    let plan = RoutePlan::new(&runtime.snapshot(), qwen3_next(4), rich).unwrap();
    document(&plan);
    let inputs = FingerprintInputs {
        plugins: &[],
        hooks: &[],
        snapshot: &snapshot,
        plans: &[&plan],
    };
    document(&Fingerprint::new(inputs));
}

#[test]
fn a_plan_that_was_sent_routes_like_its_original() {
    let runtime = runtime_with_torch();
    let plan = RoutePlan::new(&runtime.snapshot(), qwen3_next(8), request()).unwrap();
    let sent: RoutePlan = serde_json::from_str(&serde_json::to_string(&plan).unwrap()).unwrap();
    assert_eq!(
        sent.entries().collect::<Vec<_>>(),
        plan.entries().collect::<Vec<_>>()
    );
    assert_eq!(sent.entries().count(), 28);
    assert!(
        sent.is_stale(&runtime) && !plan.is_stale(&runtime),
        "it knows no runtime"
    );
}

#[test]
fn a_plan_that_contradicts_itself_is_refused() {
    let plan = RoutePlan::new(&runtime_with_torch().snapshot(), qwen3_next(4), request()).unwrap();
    let json = serde_json::to_value(&plan).unwrap();
    let refuse = |change: &dyn Fn(&mut Value), message: &str| {
        let mut bad = json.clone();
        change(&mut bad);
        let error = serde_json::from_value::<RoutePlan>(bad).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    };
    refuse(&|json| json["routes"][0]["layers"] = json!([0, 9]), "layer");
    refuse(
        &|json| json["routes"][0]["layers"] = json!([0]),
        "which does not run attention",
    );
    refuse(
        &|json| json["backends"] = json!([]),
        "which is not in the document",
    );
    refuse(
        &|json| drop(json["routes"].as_array_mut().unwrap().pop()),
        "no route serves it in decode",
    );
    refuse(
        &|json| {
            let routes = json["routes"].as_array_mut().unwrap();
            routes.push(routes[0].clone());
        },
        "has two routes of",
    );
    let backend = json["backends"][0]["id"].clone();
    let every = vec![json!({"id": backend, "name": "a", "origin": {"kind": "user"}}); 1 << 10];
    refuse(
        &|json| {
            let mut route = json["routes"][0].clone();
            route["decision"]["classes"] = json!({"backends": every, "bands": [[0, [[0, 0]]]]});
            route["layers"] = json!([]);
            let routes = json["routes"].as_array_mut().unwrap();
            routes.extend(vec![route; 7]);
        },
        "too many combinations",
    );
}

#[test]
fn a_state_whose_backends_were_shuffled_is_read_in_order() {
    let state = runtime_with_torch().snapshot();
    let mut json = serde_json::to_value(&*state).unwrap();
    json["backends"].as_array_mut().unwrap().reverse();
    assert_eq!(serde_json::from_value::<Snapshot>(json).unwrap(), *state);
}

#[test]
fn native_entries_stay_in_their_process() {
    #[derive(Debug)]
    struct Native;
    impl switchrail::NativeBackend for Native {
        fn check_config(&self, _: &switchrail::Config) -> Result<(), String> {
            Ok(())
        }
    }
    let runtime = Runtime::new();
    let transaction = runtime.begin(Origin::User);
    let entry = Entry::Native(std::sync::Arc::new(Native));
    transaction
        .registrar()
        .add(spec(Op::Kda, "native"), entry, false)
        .unwrap();
    transaction.commit().unwrap();
    let text = serde_json::to_string(&*runtime.snapshot()).unwrap();
    let sent: Snapshot = serde_json::from_str(&text).unwrap();
    let is_native = |name| {
        let snapshot = runtime.snapshot();
        let found = snapshot.find(Op::Kda, name).unwrap();
        found.entry.native::<Native>().is_some()
    };
    assert!(is_native("native"));
    assert_eq!(sent.find(Op::Kda, "native").unwrap().entry, Entry::Foreign);
    register(&runtime, Origin::User, spec(Op::Kda, "foreign"), false);
    assert!(!is_native("foreign"));
}
