"""SGLang's real Engine serves a small Qwen3-Next with the unchanged vendor plugin of tests/plugins."""

import os

import checkpoint
import pytest
import torch

NEW_TOKENS = 6
TRACKED = 64
"""The number of tokens between the states that SGLang's prefix cache keeps."""
OURS = {"linear_attn_backend": "switchrail:acme", "attention_backend": "switchrail"}
OWN = {"linear_attn_backend": "triton", "attention_backend": "torch_native"}


def prompts(model):
    """Short prompts, and a long one all of whose tokens can be compared."""
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
    # One instance serves both phases. A tracked prompt is split into two parts.
    extends, decodes = ours.batches("EXTEND"), ours.batches("DECODE")
    assert len(decodes) == 3 * (NEW_TOKENS - 1)
    last = max(ours.watched, key=lambda line: line["calls"]["decode"])
    assert last["calls"]["decode"] == last["calls"]["prefill"] == layers * (len(extends) + 1 + len(decodes))


def test_switchrail_serves_full_attention(ours):
    assert {tuple(each) for line in ours.watched for each in line["full"]} == {
        ("decode", "torch"),
        ("prefill", "torch"),
    }


def test_no_pass_takes_another_path(ours):
    assert {(line["bypassed"], line["full_bypassed"]) for line in ours.watched} == {(0, 0)}


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


def test_all_is_resolved_before_the_first_request(engine, options, batches):
    run = engine({**options, **OURS, "linear_attn_backend": "switchrail:acne"}, batches)
    assert run.status != 0
    assert "there is no linear attention backend 'switchrail:acne'; nearest: switchrail:acme" in run.log
    assert not run.watched
