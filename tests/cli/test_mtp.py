import json

from tests.sizes import GATED_DELTA

CONFIG = {
    "model_type": "qwen3_next",
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    **GATED_DELTA,
    "max_position_embeddings": 128,
    "mtp_layer_types": ["full_attention", "linear_attention"],
}


def test_the_layers_of_a_draft_head_are_shown(switchrail, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    done = switchrail("explain", tmp_path)
    assert done.exit_code == 0, done.output
    assert "step 0 of the model's draft head, with draft=mtp: layer 0 full_attention" in done.output
    assert "step 1 of the model's draft head, with draft=mtp: layer 0 gated_delta" in done.output
    document = json.loads(switchrail("explain", tmp_path, "--json").output)
    assert [[layer["kind"] for layer in draft["layers"]] for draft in document["drafts"]] == [
        ["full_attention"],
        ["gated_delta"],
    ]
    assert [[layer["id"] for layer in draft["layers"]] for draft in document["drafts"]] == [[0], [0]]
    decisions = [route["decision"] for draft in document["drafts"] for route in draft["routes"]]
    assert {(one["query"]["op"], one["query"]["phase"]) for one in decisions} == {
        (op, phase) for op in ("attention", "short_conv", "gated_delta") for phase in ("prefill", "decode")
    }
    done = switchrail("plan", tmp_path)
    name = tmp_path.name
    assert f"plan of {name} draft 0 (with draft=mtp)" in " ".join(done.output.split())
    only = json.loads(switchrail("explain", tmp_path, "--json", "--phase", "verify").output)
    assert only["drafts"] == []


def test_a_wrong_draft_head_is_refused(switchrail, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "mtp_num_hidden_layers": 3}))
    failed = switchrail("explain", tmp_path)
    assert failed.exit_code != 0
    assert "one entry per step, of 3 steps" in " ".join(failed.stderr.split())


def test_run_drafts_with_the_models_head(switchrail, checkpoint):
    def tokens(*more):
        done = switchrail(
            "run",
            checkpoint,
            "--prompt",
            "And the LORD said",
            "--max-new-tokens",
            12,
            "--json",
            "--device",
            "cpu",
            *more,
        )
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    document = tokens("--draft", "mtp")
    assert document["outputs"] == tokens()["outputs"]
    assert document["accepted_tokens"] > 0
