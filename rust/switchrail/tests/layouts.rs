//! Tests of layouts. Fixtures have the kinds and shapes of transformers' modules; `tests/layouts/families.py` makes
//! them.

use std::{fs, path::Path};

use serde_json::{Value, json};
use switchrail::{CoreError, Layout, LayoutError, Op, Shape};

fn fixtures() -> Vec<(String, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/layouts");
    let mut found: Vec<(String, Value)> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, serde_json::from_slice(&fs::read(path).unwrap()).unwrap())
        })
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(found.len() > 30, "only {} fixtures", found.len());
    found
}

#[test]
fn kinds_and_shapes_are_those_of_the_modules() {
    for (name, fixture) in fixtures() {
        let built = fixture["layers"].as_array().unwrap();
        for form in ["published", "saved"] {
            let layout =
                Layout::from_config(&fixture[form]).unwrap_or_else(|error| panic!("{name}, {form}: {error}"));
            let kinds: Vec<&str> = layout.layers().iter().map(|layer| layer.kind.name()).collect();
            let expected: Vec<&str> = built
                .iter()
                .map(|layer| layer["kind"].as_str().unwrap())
                .collect();
            assert_eq!(kinds, expected, "{name}, {form}");
            for (layer, built) in layout.layers().iter().zip(built) {
                let shapes = built["shapes"].as_object().unwrap();
                let mut ops: Vec<&str> = layer.ops.iter().map(|op| op.name()).collect();
                ops.sort_unstable();
                assert_eq!(
                    ops,
                    shapes.keys().collect::<Vec<_>>(),
                    "{name}, {form}, layer {}",
                    layer.id
                );
                for (op, shape) in shapes {
                    let expected: Shape = serde_json::from_value(shape.clone()).unwrap();
                    let found = layout.shape(layer.kind, op.parse().unwrap());
                    assert_eq!(
                        found,
                        published(expected, found, form),
                        "{name}, {form}, layer {}, {op}",
                        layer.id
                    );
                }
            }
        }
    }
}

/// The expected shape. A published config may omit sizes that have defaults in its Python class, so for such a
/// config, sizes that `found` lacks are left out.
fn published(expected: Shape, found: Shape, form: &str) -> Shape {
    let known = |expected: Option<u32>, found: Option<u32>| {
        if form == "saved" {
            expected
        } else {
            found.and(expected)
        }
    };
    Shape {
        q_heads: known(expected.q_heads, found.q_heads),
        k_heads: known(expected.k_heads, found.k_heads),
        v_heads: known(expected.v_heads, found.v_heads),
        head_size_k: known(expected.head_size_k, found.head_size_k),
        head_size_v: known(expected.head_size_v, found.head_size_v),
        window: known(expected.window, found.window),
        channels: known(expected.channels, found.channels),
        width: known(expected.width, found.width),
        soft_cap: expected.soft_cap,
        sinks: expected.sinks,
    }
}

#[test]
fn every_family_has_a_fixture() {
    let fixtures = fixtures();
    for model_type in Layout::model_types() {
        let is_of_family = |(_, fixture): &(String, Value)| {
            Layout::from_config(&fixture["published"]).unwrap().model_type() == model_type
        };
        assert!(fixtures.iter().any(is_of_family), "{model_type}");
    }
}

#[test]
fn a_layout_survives_json() {
    for (name, fixture) in fixtures() {
        let layout = Layout::from_config(&fixture["saved"]).unwrap();
        let text = serde_json::to_string(&layout).unwrap();
        assert_eq!(serde_json::from_str::<Layout>(&text).unwrap(), layout, "{name}");
    }
}

#[test]
fn a_damaged_document_is_refused() {
    let layout = serde_json::to_value(Layout::from_kinds("mine", ["kda".parse().unwrap()])).unwrap();
    let mut newer = layout.clone();
    newer["schema"] = json!(99);
    let mut shifted = layout;
    shifted["layers"][0]["id"] = json!(1);
    for (document, reason) in [
        (newer, "unknown schema version 99; this build reads version 1"),
        (shifted, "layers[0] has id 1; valid: 0"),
    ] {
        let message = serde_json::from_value::<Layout>(document)
            .unwrap_err()
            .to_string();
        assert!(message.contains(reason), "{message}");
    }
}

#[test]
fn the_ids_of_kimi_linear_count_from_one() {
    let config = json!({
        "model_type": "kimi_linear",
        "num_hidden_layers": 4,
        "linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2, 3]},
    });
    let layout = Layout::from_config(&config).unwrap();
    assert_eq!(layout.layer(3).unwrap().ops, [Op::Mla]);
    assert_eq!(layout.layer(0).unwrap().ops, [Op::ShortConv, Op::Kda]);
}

#[test]
fn zamba2_ids_alone_are_enough() {
    let config = json!({"model_type": "zamba2", "num_hidden_layers": 3, "hybrid_layer_ids": [1]});
    let layout = Layout::from_config(&config).unwrap();
    let kinds: Vec<&str> = layout.layers().iter().map(|layer| layer.kind.name()).collect();
    assert_eq!(kinds, ["mamba2", "hybrid", "mamba2"]);
}

#[test]
fn ring_and_ling_share_a_model_type() {
    let kinds = |model_type: &str, architecture: &str| {
        let config = json!({
            "model_type": model_type,
            "architectures": [architecture],
            "num_hidden_layers": 4,
            "layer_group_size": 2,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "kv_lora_rank": 32,
            "qk_rope_head_dim": 4,
        });
        let layout = Layout::from_config(&config).unwrap();
        layout
            .layers()
            .iter()
            .map(|layer| layer.kind.name())
            .collect::<Vec<_>>()
            .join(" ")
    };
    let ring = "BailingMoeV2_5ForCausalLM";
    assert_eq!(kinds("bailing_hybrid", ring), "lightning mla lightning mla");
    assert_eq!(
        kinds("bailing_hybrid", "BailingHybridForCausalLM"),
        "kda mla kda mla"
    );
    assert_eq!(kinds("bailing_moe_linear", ring), "lightning mla lightning mla");
    assert_eq!(
        kinds("bailing_moe_linear", "BailingMoeLinearV2ForCausalLM"),
        "lightning full_attention lightning full_attention"
    );
}

/// Replaces one value of a fixture at a time by each of the wrong values.
#[test]
fn no_config_causes_a_panic() {
    let wrong = [
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(u64::MAX),
        json!(1.5),
        json!(""),
        json!("x"),
        json!([]),
        json!([0, "x", null]),
        json!({}),
        json!({"full_attn_layers": [0], "kda_layers": [u64::MAX]}),
    ];
    let mut refused = 0;
    for (_, fixture) in fixtures() {
        for form in ["published", "saved"] {
            for key in fixture[form].as_object().unwrap().keys() {
                for value in &wrong {
                    let mut config = fixture[form].clone();
                    config[key] = value.clone();
                    if let Err(error) = Layout::from_config(&config) {
                        refused += 1;
                        assert!(!error.to_string().is_empty() && error.fields().is_object());
                    }
                }
            }
        }
    }
    assert!(refused > 1000, "{refused}");
}

#[test]
fn layers_without_an_op_are_named() {
    let jamba = json!({"model_type": "jamba", "num_hidden_layers": 2, "attn_layer_period": 2, "attn_layer_offset": 1});
    let layout = Layout::from_config(&jamba).unwrap();
    assert_eq!(
        layout.layers()[0].uncovered.as_deref(),
        Some("the selective scan of mamba1")
    );
    assert_eq!(layout.layers()[1].uncovered, None);
    let zamba = json!({"model_type": "zamba", "layers_block_type": ["mamba", "hybrid"]});
    let hybrid = &Layout::from_config(&zamba).unwrap().layers()[1].clone();
    assert_eq!(hybrid.ops, [Op::ShortConv, Op::Attention]);
    assert_eq!(hybrid.uncovered.as_deref(), Some("the selective scan of mamba1"));
}

fn refused(config: &Value) -> LayoutError {
    Layout::from_config(config).expect_err(&config.to_string())
}

#[test]
fn an_unknown_model_type_names_the_nearest() {
    let error = refused(&json!({"model_type": "qwen3next", "num_hidden_layers": 2}));
    assert_eq!(error.code(), "unknown_model_type");
    assert_eq!(error.fields()["found"], "qwen3next");
    assert_eq!(error.fields()["nearest"][0], "qwen3_next");
    assert!(
        error.fields()["valid"]
            .as_array()
            .unwrap()
            .contains(&json!("bamba"))
    );
    assert!(
        error
            .to_string()
            .contains(r#"unknown model_type "qwen3next"; nearest: "qwen3_next""#),
        "{error}"
    );
}

#[test]
fn json_that_is_not_a_config_is_refused() {
    for config in [
        json!(null),
        json!([1]),
        json!("qwen3_next"),
        json!({}),
        json!({"model_type": 7}),
    ] {
        let error = refused(&config);
        assert_eq!(error.code(), "layout_no_model_type");
        assert!(
            error.to_string().contains(&format!(
                "config is {config}, without a model_type; valid: an object"
            )),
            "{error}"
        );
    }
}

#[test]
fn a_config_that_names_no_layers_gets_the_valid_keys() {
    let error = refused(&json!({"model_type": "qwen3_next", "num_hidden_layers": 4}));
    assert_eq!(error.code(), "layout_missing_key");
    assert_eq!(
        error.fields()["valid"],
        json!(["layer_types", "full_attention_interval"])
    );
    let error = refused(&json!({"model_type": "qwen3_next", "full_attention_interval": 4}));
    assert_eq!(error.fields()["valid"], json!(["num_hidden_layers"]));
    let error = refused(&json!({
        "model_type": "kimi_linear", "num_hidden_layers": 2, "linear_attn_config": {"kda_layers": [1, 2]},
    }));
    let keys = [
        "layer_types",
        "linear_attn_config.full_attn_layers",
        "linear_attn_config.kda_layers",
    ];
    assert_eq!(error.fields()["valid"], json!(keys));
}

#[test]
fn the_number_of_layers_must_agree() {
    let error = refused(&json!({
        "model_type": "lfm2", "num_hidden_layers": 3, "layer_types": ["conv", "full_attention"],
    }));
    assert_eq!(error.code(), "layout_length");
    assert_eq!(
        error.to_string(),
        "layer_types names 2 layers in the lfm2 config, but num_hidden_layers is 3; valid: the same number in both"
    );
    let error = refused(&json!({
        "model_type": "nemotron_h", "num_hidden_layers": 3, "hybrid_override_pattern": "M*",
    }));
    assert_eq!(error.code(), "layout_length");
}

#[test]
fn an_unknown_kind_names_the_nearest() {
    let error =
        refused(&json!({"model_type": "qwen3_next", "layer_types": ["full_attention", "liner_attention"]}));
    assert_eq!(error.code(), "layout_unknown_kind");
    assert_eq!(error.fields()["layer"], 1);
    assert_eq!(error.fields()["nearest"][0], "linear_attention");
    let error = refused(&json!({"model_type": "nemotron_h", "hybrid_override_pattern": "M*X"}));
    assert_eq!(error.fields()["found"], "X");
    assert_eq!(error.fields()["valid"], json!(["*", "-", "E", "M"]));
}

#[test]
fn an_id_outside_the_model_gets_the_valid_range() {
    let error =
        refused(&json!({"model_type": "bamba", "num_hidden_layers": 4, "attn_layer_indices": [1, 4]}));
    assert_eq!(
        error.to_string(),
        "attn_layer_indices names layer 4 in the bamba config; valid: 0 to 3"
    );
    for id in [0, 5] {
        let error = refused(&json!({
            "model_type": "kimi_linear",
            "num_hidden_layers": 4,
            "linear_attn_config": {"full_attn_layers": [id], "kda_layers": [1, 2, 3]},
        }));
        assert_eq!(error.code(), "layout_id_out_of_range");
        assert_eq!(
            (&error.fields()["first"], &error.fields()["last"]),
            (&json!(1), &json!(4))
        );
    }
}

#[test]
fn two_keys_must_not_disagree() {
    let error = refused(&json!({
        "model_type": "lfm2", "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"], "full_attn_idxs": [0],
    }));
    assert_eq!(error.code(), "layout_contradiction");
    assert_eq!(error.fields()["keys"], json!(["layer_types", "full_attn_idxs"]));
    assert_eq!(error.fields()["found"], json!(["short_conv", "full_attention"]));
    let shared_out = |full: &[u8], kda: &[u8]| {
        refused(&json!({
            "model_type": "kimi_linear",
            "num_hidden_layers": 3,
            "linear_attn_config": {"full_attn_layers": full, "kda_layers": kda},
        }))
    };
    assert_eq!(shared_out(&[3], &[1, 2, 3]).code(), "layout_contradiction");
    let error = shared_out(&[3], &[1]);
    assert_eq!(error.code(), "layout_unassigned");
    assert_eq!(error.fields()["layer"], 2);
}

#[test]
fn values_of_the_wrong_kind_are_refused() {
    let qwen = |key: &str, value: Value| {
        let mut config =
            json!({"model_type": "qwen3_next", "num_hidden_layers": 2, "full_attention_interval": 2});
        config[key] = value;
        refused(&config)
    };
    for (key, value) in [
        ("num_hidden_layers", json!(0)),
        ("num_hidden_layers", json!(-1)),
        ("num_hidden_layers", json!(true)),
        ("num_hidden_layers", json!("2")),
        ("num_hidden_layers", json!(1e12)),
        ("num_hidden_layers", json!(1_000_000_000_000_u64)),
        ("full_attention_interval", json!(0)),
        ("layer_types", json!("full_attention")),
        ("layer_types", json!([1, 2])),
        ("head_dim", json!(-8)),
        ("num_key_value_heads", json!(1.5)),
    ] {
        let error = qwen(key, value);
        assert_eq!(error.code(), "layout_bad_value", "{error}");
        assert!(error.to_string().starts_with(key), "{error}");
    }
    let error = qwen("num_hidden_layers", json!("x".repeat(500)));
    assert!(error.to_string().len() < 200, "{error}");
    let period = json!({"model_type": "jamba", "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 2});
    assert!(
        refused(&period)
            .to_string()
            .contains("below attn_layer_period, which is 2")
    );
    let empty = json!({"model_type": "recurrent_gemma", "num_hidden_layers": 4, "block_types": []});
    assert_eq!(refused(&empty).code(), "layout_bad_value");
}

#[test]
fn a_layer_outside_the_layout_gets_the_valid_range() {
    let layout = Layout::from_kinds("mine", ["mamba2".parse().unwrap(), "mlp".parse().unwrap()]);
    assert_eq!(
        layout.layer(2).unwrap_err().to_string(),
        "mine has no layer 2; valid: 0 to 1"
    );
    let empty = Layout::from_kinds("empty", []);
    assert_eq!(
        empty.layer(0).unwrap_err().to_string(),
        "empty has no layer 0; valid: none, it has no layers"
    );
}

#[test]
fn a_path_names_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("tiny-lfm2");
    fs::create_dir(&model).unwrap();
    let error = Layout::from_path(&model).unwrap_err();
    assert_eq!(error.code(), "layout_read");
    assert!(
        error
            .to_string()
            .contains("valid: a config.json, or the folder that has one"),
        "{error}"
    );
    fs::write(
        model.join("config.json"),
        r#"{"model_type": "lfm2", "layer_types": ["#,
    )
    .unwrap();
    assert_eq!(Layout::from_path(&model).unwrap_err().code(), "layout_json");
    fs::write(
        model.join("config.json"),
        r#"{"model_type": "lfm2", "layer_types": ["conv"]}"#,
    )
    .unwrap();
    for path in [model.clone(), model.join("config.json")] {
        assert_eq!(Layout::from_path(path).unwrap().model(), "tiny-lfm2");
    }
}

#[test]
fn numbers_that_python_writes_are_read() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let read = |config: &str| {
        fs::write(file.path(), config).unwrap();
        Layout::from_path(file.path())
    };
    let layout = read(
        r#"{"model_type": "lfm2", "layer_types": ["conv"], "a\"": [0.0, Infinity], "b\\": {"c":-Infinity, "d": NaN},
           "text": "NaN \" -Infinity"}"#,
    );
    assert_eq!(layout.unwrap().layers().len(), 1);
    let error = read(r#"{"model_type": "lfm2", "layer_types": Infinity}"#).unwrap_err();
    let message = r#"layer_types is "Infinity" in the lfm2 config; valid: "#;
    assert!(error.to_string().starts_with(message), "{error}");
    for config in [
        r#"{"a": infinity}"#,
        r#"{"a": +Infinity}"#,
        r#"{"a": 1NaN}"#,
        r#"{"a\"#,
        "",
        "Infinit",
    ] {
        assert_eq!(read(config).unwrap_err().code(), "layout_json", "{config}");
    }
}

/// The files are damaged, hostile or not regular files.
#[test]
fn a_file_that_is_not_a_config_is_an_error_and_never_aborts_the_process() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("config.json");
    let deep = 300_000;
    for text in [
        "[".repeat(deep),
        "{\"text_config\":".repeat(deep),
        format!("{}{}", "[".repeat(deep), "]".repeat(deep)),
        format!(
            "{{\"model_type\": \"mamba\", \"num_hidden_layers\": {}}}",
            "9".repeat(100_000)
        ),
        "{\"model_type\": \"mamba\", \"num_hidden_layers\": 1e999}".to_owned(),
        "\u{0}".repeat(100),
    ] {
        std::fs::write(&file, text).unwrap();
        let error = Layout::from_path(&file).unwrap_err();
        assert_eq!(error.code(), "layout_json");
        assert!(error.to_string().len() < 1_000);
    }
    let numbers = [
        "-1",
        "1.5",
        "18446744073709551616",
        "4294967296",
        "1e300",
        "true",
        "\"12\"",
        "[1]",
        "{}",
    ];
    for number in numbers {
        let text = format!("{{\"model_type\": \"mamba\", \"num_hidden_layers\": {number}}}");
        std::fs::write(&file, text).unwrap();
        let error = Layout::from_path(&file).unwrap_err();
        assert_eq!(error.code(), "layout_bad_value", "{number}");
    }
    let nested = root.path().join("nested");
    std::fs::create_dir_all(nested.join("config.json")).unwrap();
    assert_eq!(Layout::from_path(nested).unwrap_err().code(), "layout_read");
    #[cfg(unix)]
    assert_eq!(Layout::from_path("/dev/zero").unwrap_err().code(), "layout_read");
}

fn draft_kinds(config: &Value) -> Vec<Vec<&'static str>> {
    let layout = Layout::from_config(config).unwrap();
    layout
        .drafts()
        .iter()
        .map(|draft| draft.layers().iter().map(|layer| layer.kind.name()).collect())
        .collect()
}

fn with(config: &Value, more: &Value) -> Value {
    let mut config = config.clone();
    config
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    config
}

#[test]
fn each_step_of_a_draft_head_counts_its_layers_from_0() {
    let deepseek = json!({
        "model_type": "deepseek_v3", "num_hidden_layers": 4, "num_nextn_predict_layers": 3,
        "num_attention_heads": 8, "kv_lora_rank": 16, "qk_rope_head_dim": 4,
    });
    assert_eq!(draft_kinds(&deepseek), vec![vec!["mla"]; 3]);
    let layout = Layout::from_config(&deepseek).unwrap();
    for (step, draft) in layout.drafts().iter().enumerate() {
        assert_eq!(draft.layers()[0].id, 0);
        assert_eq!(draft.model(), format!("deepseek_v3 draft {step}"));
        assert_eq!(draft.model_type(), "deepseek_v3");
        let kind = draft.layers()[0].kind;
        assert_eq!(draft.shape(kind, Op::Mla), layout.shape(kind, Op::Mla));
        assert!(draft.drafts().is_empty());
    }
    let copy: Layout = serde_json::from_value(serde_json::to_value(&layout).unwrap()).unwrap();
    assert_eq!(copy, layout);
}

#[test]
fn the_config_determines_the_layers_of_a_draft_head() {
    let qwen = json!({"model_type": "qwen3_next", "num_hidden_layers": 4, "full_attention_interval": 4});
    let nemotron = json!({"model_type": "nemotron_h", "layers_block_type": ["mamba", "mlp"]});
    for (config, more, expected) in [
        (&qwen, json!({}), vec![]),
        (
            &qwen,
            json!({"mtp_num_hidden_layers": 0, "mtp_layer_types": ["x"]}),
            vec![],
        ),
        (
            &qwen,
            json!({"mtp_num_hidden_layers": 1}),
            vec![vec!["full_attention"]],
        ),
        (
            &qwen,
            json!({"num_nextn_predict_layers": 1}),
            vec![vec!["full_attention"]],
        ),
        (
            &qwen,
            json!({"mtp_layer_types": ["linear_attention"]}),
            vec![vec!["gated_delta"]],
        ),
        (
            &qwen,
            json!({"mtp_num_hidden_layers": 2, "mtp_layer_types": ["linear_attention", "full_attention"]}),
            vec![vec!["gated_delta"], vec!["full_attention"]],
        ),
        (
            &nemotron,
            json!({"mtp_layers_block_type": ["attention", "moe"]}),
            vec![],
        ),
        (
            &nemotron,
            json!({"num_nextn_predict_layers": 1}),
            vec![vec!["full_attention", "moe"]],
        ),
        (
            &nemotron,
            json!({"num_nextn_predict_layers": 2, "mtp_layers_block_type": ["mamba", "full_attention"]}),
            vec![vec!["mamba2", "full_attention"]; 2],
        ),
        (
            &nemotron,
            json!({"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*M"}),
            vec![vec!["full_attention", "mamba2"]],
        ),
    ] {
        assert_eq!(draft_kinds(&with(config, &more)), expected, "{more}");
    }
    let nested = json!({"model_type": "qwen3_5", "text_config": with(
        &qwen, &json!({"model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1}),
    )});
    assert_eq!(draft_kinds(&nested), [["full_attention"]]);
}

#[test]
fn wrong_values_of_a_draft_head_are_refused() {
    let qwen = json!({"model_type": "qwen3_next", "num_hidden_layers": 4, "full_attention_interval": 4});
    for (more, text) in [
        (
            json!({"mtp_num_hidden_layers": -1}),
            "mtp_num_hidden_layers is -1 in the qwen3_next config; valid: a whole number from 0 to 65536",
        ),
        (
            json!({"mtp_num_hidden_layers": "1"}),
            "valid: a whole number from 0",
        ),
        (
            json!({"mtp_num_hidden_layers": 1_000_000}),
            "mtp_num_hidden_layers is 1000000",
        ),
        (
            json!({"mtp_num_hidden_layers": 1, "num_nextn_predict_layers": 2}),
            "mtp_num_hidden_layers is 1 in the qwen3_next config; valid: the same as num_nextn_predict_layers, which is 2",
        ),
        (
            json!({"mtp_layer_types": "full_attention"}),
            "mtp_layer_types is \"full_attention\"",
        ),
        (
            json!({"mtp_layer_types": ["full_atention"]}),
            "nearest: \"full_attention\"",
        ),
        (
            json!({"mtp_num_hidden_layers": 2, "mtp_layer_types": ["full_attention"]}),
            "mtp_layer_types is [\"full_attention\"] in the qwen3_next config; valid: one entry per step, of 2 steps",
        ),
    ] {
        let found = refused(&with(&qwen, &more)).to_string();
        assert!(found.contains(text), "{found}");
    }
    let nemotron = json!({
        "model_type": "nemotron_h", "layers_block_type": ["mamba"], "num_nextn_predict_layers": 1,
        "mtp_layers_block_type": ["attentoin"],
    });
    assert!(
        refused(&nemotron)
            .to_string()
            .contains("mtp_layers_block_type[0]")
    );
    for (letters, steps) in [(String::new(), 1), ("M".repeat(3000), 65536)] {
        let config = json!({
            "model_type": "nemotron_h", "hybrid_override_pattern": "M*", "num_nextn_predict_layers": steps,
            "mtp_hybrid_override_pattern": letters,
        });
        let found = refused(&config).to_string();
        assert!(found.contains("mtp_hybrid_override_pattern is \""), "{found}");
        assert!(
            found.contains(&format!(
                "layers for each of {steps} steps, not {}",
                letters.len()
            )),
            "{found}"
        );
    }
}
