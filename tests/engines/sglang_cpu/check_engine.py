"""SGLang's real Engine serves a small Qwen3-Next with the unmodified vendor plugin of tests/plugins."""

import os

import checkpoint
import pytest
import torch

NEW_TOKENS = 6
TRACKED = 64
"""The number of tokens between the states that SGLang's prefix cache keeps."""
OURS = {"linear_attn_backend": "switchrail:acme", "attention_backend": "switchrail:acme"}
DRAFTS = {
    "speculative_algorithm": "NGRAM",
    "speculative_num_draft_tokens": 6,
    "speculative_ngram_max_bfs_breadth": 3,
}
OWN = {"linear_attn_backend": "triton", "attention_backend": "torch_native"}


def prompts(model):
    """Four short prompts and a long one, each with its greedy tokens, which have no near tie."""
    found = []
    for seed, length in enumerate((3, 5, 9, 14) * 20 + (TRACKED + 6,) * 20):
        if sum(len(prompt) == length for prompt, _ in found):
            continue
        drawn = torch.randint(2, 300, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
        tokens, sure = checkpoint.greedy(model, drawn, NEW_TOKENS)
        if sure == NEW_TOKENS:
            found.append((drawn, tokens))
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen3-next")
    made = checkpoint.make(folder)
    return folder, prompts(made)


@pytest.fixture(scope="module")
def options(model):
    return {
        "model_path": str(model[0]),
        "max_running_requests": 4,
        "max_total_tokens": 512,
        "max_mamba_cache_size": 16,
        "mamba_radix_cache_strategy": "extra_buffer",
    }


@pytest.fixture(scope="module")
def batches(model):
    *short, (long, _) = model[1]
    first = {"prompts": [prompt for prompt, _ in short], "new_tokens": NEW_TOKENS}
    again = {"prompts": [long], "new_tokens": NEW_TOKENS}
    return [first, again, again]


@pytest.fixture(scope="module")
def ours(engine, options, batches):
    run = engine({**options, **OURS}, batches)
    assert run.status == 0, run.log[-4000:]
    return run


@pytest.fixture(scope="module")
def doubled(engine, options, batches):
    run = engine({**options, **OURS, "max_total_tokens": 1024, "max_mamba_cache_size": 32}, batches)
    assert run.status == 0, run.log[-4000:]
    return run


@pytest.fixture(scope="module")
def drafted(engine, options, batches):
    """A run with n-gram drafts as trees. Each batch is repeated, so that some drafts are accepted."""
    first, again, _ = batches
    run = engine({**options, **OURS, **DRAFTS}, [first, first, again, again])
    assert run.status == 0, run.log[-4000:]
    return run


def test_prompts_are_found_whose_tokens_can_all_be_compared(model):
    assert len(model[1]) == 5


@pytest.mark.parametrize("name", ["ours", "doubled"])
def test_tokens_are_those_of_transformers(name, request, model):
    *short, long = [tokens for _, tokens in model[1]]
    got = [[one["tokens"] for one in batch] for batch in request.getfixturevalue(name).answers]
    assert got == [short, [long], [long]]


def test_the_vendors_kernel_serves_every_call_in_the_schedulers_process(ours):
    layers, linear = (
        3,
        [each for line in ours.watched for each in line["backends"] if each[0] == "gated_delta"],
    )
    assert {tuple(each) for each in linear} == {
        ("gated_delta", phase, "acme") for phase in ("decode", "prefill")
    }
    assert {line["process"] for line in ours.watched} != {os.getpid()}
    # One backend instance counts its calls in both phases. The first long prompt takes two calls a layer,
    # since SGLang keeps the state after its first TRACKED tokens.
    extends, decodes = ours.batches("EXTEND"), ours.batches("DECODE")
    assert len(decodes) == 3 * (NEW_TOKENS - 1)
    last = max(ours.watched, key=lambda line: line["calls"]["decode"])
    assert last["calls"]["decode"] == last["calls"]["prefill"] == layers * (len(extends) + 1 + len(decodes))


def test_the_vendors_kernel_serves_full_attention(ours):
    assert {tuple(each) for line in ours.watched for each in line["full"]} == {
        ("decode", "acme"),
        ("prefill", "acme"),
    }
    last = max(ours.watched, key=lambda line: line["full_calls"]["decode"])
    assert last["full_calls"]["decode"] == last["full_calls"]["prefill"] == len(ours.watched)


def test_hooks_of_both_systems_watch_the_scheduler(ours):
    assert [line["seen"] for line in ours.watched] == [*range(1, len(ours.watched) + 1)]
    assert "Scheduler.run_batch: `around` hook of engine-watch, registered with switchrail" in ours.log
    assert "Scheduler.run_batch: `before` hook of engine-watch, registered with sglang" in ours.log


@pytest.mark.parametrize("name", ["ours", "drafted"])
def test_no_pass_takes_another_path(name, request):
    watched = request.getfixturevalue(name).watched
    assert {(line["bypassed"], line["full_bypassed"]) for line in watched} == {(0, 0)}


def test_drafts_change_no_token_and_the_vendors_kernels_verify_them(drafted, model):
    *short, long = [tokens for _, tokens in model[1]]
    assert [[one["tokens"] for one in batch] for batch in drafted.answers] == [short, short, [long], [long]]
    assert sum(one["accepted"] for batch in drafted.answers[1::2] for one in batch) > len(short)
    assert drafted.answers[3][0]["cached"] == TRACKED
    passes = [line for line in drafted.watched if line["mode"] != "EXTEND"]
    assert {tuple(each) for line in passes for each in line["backends"] if each[0] == "gated_delta"} == {
        ("gated_delta", phase, "acme") for phase in ("decode", "prefill", "verify")
    }
    last = drafted.watched[-1]
    assert (last["calls"]["verify"], last["full_calls"]["verify"]) == (3 * len(passes), len(passes))


def test_a_prefix_comes_from_the_cache(ours):
    _, first, again = ours.answers
    assert (first[0]["cached"], again[0]["cached"]) == (0, TRACKED)


def test_larger_pools_change_no_allocation(ours, doubled):
    allocated, larger = (
        [(line["mode"], line["allocated"]) for line in run.watched] for run in (ours, doubled)
    )
    assert allocated == larger
    assert all(count > 0 for _, count in allocated)


def test_the_log_has_the_names_asked_for(ours):
    assert "decode=switchrail:acme, prefill=switchrail:acme" in ours.log
    assert "gated_delta decode of layers 0, 1, 2: backend acme of" in ours.log


def test_a_vendors_platform_of_switchrail_is_sglangs(engine, options, batches, model):
    first, *_ = batches
    run = engine({**options, "attention_backend": "switchrail"}, [first], ACME_DEVICE="cpu")
    assert run.status == 0, run.log[-4000:]
    assert [one["tokens"] for one in run.answers[0]] == [tokens for _, tokens in model[1]][:4]
    assert {tuple(each) for line in run.watched for each in line["backends"] if each[0] == "gated_delta"} == {
        ("gated_delta", phase, "acme_ops") for phase in ("decode", "prefill")
    }
    assert {name for line in run.watched for _, name in line["full"]} == {"acme_ops"}


def test_the_policy_file_configures_the_vendors_kernel(engine, options, batches, model, tmp_path):
    first, *_ = batches
    policy = tmp_path / "policy.toml"
    policy.write_text("[config.gated_delta.acme]\nscale = -1\n")
    run = engine({**options, **OURS}, [first], SWITCHRAIL_POLICY=str(policy))
    assert run.status == 0, run.log[-4000:]
    assert [one["tokens"] for one in run.answers[0]] != [tokens for _, tokens in model[1]][:4]


def test_all_is_resolved_before_the_first_request(engine, options, batches):
    run = engine({**options, **OURS, "linear_attn_backend": "switchrail:acne"}, batches)
    assert run.status != 0
    assert "there is no linear attention backend 'switchrail:acne'; nearest: switchrail:acme" in run.log
    assert not run.watched
