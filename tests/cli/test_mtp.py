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


def test_the_chosen_draft_is_shown(switchrail, tmp_path):
    """`explain` shows the draft's own layout and routes. The draft verifies only if it proposes trees."""
    model, draft = tmp_path / "model", tmp_path / "small"
    for folder, changes in (
        (model, {}),
        (draft, {"layer_types": ["full_attention"], "num_hidden_layers": 1}),
    ):
        folder.mkdir()
        kept = {key: value for key, value in CONFIG.items() if folder == model or "mtp" not in key}
        (folder / "config.json").write_text(json.dumps(kept | changes))

    def phases(routes):
        return {(one["decision"]["query"]["op"], one["decision"]["query"]["phase"]) for one in routes}

    def explained(*more):
        done = switchrail("explain", model, "--json", *more)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    linear = {(op, "verify") for op in ("attention", "short_conv", "gated_delta")}
    shown = explained("--draft", draft)
    assert linear <= phases(shown["routes"])
    (own,) = shown["drafts"]
    assert own["model"] == "small"
    assert [(layer["id"], layer["kind"]) for layer in own["layers"]] == [(0, "full_attention")]
    assert phases(own["routes"]) == {("attention", "prefill"), ("attention", "decode")}
    assert (
        "the draft model small: layer 0 full_attention"
        in switchrail("explain", model, "--draft", draft).output
    )
    head = explained("--draft", "mtp")
    assert linear <= phases(head["routes"])
    assert len(head["drafts"]) == 2
    assert explained("--draft", "ngram")["drafts"] == []
    assert linear.isdisjoint(phases(explained()["routes"]))
    (tmp_path / "trees.toml").write_text("[engine]\ndraft_branches = 2\n")
    (own,) = explained("--draft", draft, "--config", tmp_path / "trees.toml")["drafts"]
    assert ("attention", "verify") in phases(own["routes"])
    done = switchrail("plan", model, "--draft", draft)
    assert "plan of small (the draft model)" in " ".join(done.output.split())
    assert switchrail("explain", model, "--draft", "nowhere").exit_code != 0


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
