"""SGLang's real Engine serves the trained checkpoint with the vendor plugin, the prefix cache and drafts."""

import pytest

from benchmarks.serving.trained import for_sglang
from benchmarks.sglang_tokens import compare, expect

NEW_TOKENS = 12
PROMPTS = 5
OPTIONS = {
    "linear_attn_backend": "switchrail:acme",
    "attention_backend": "switchrail:acme",
    "max_running_requests": 8,
    "max_total_tokens": 2048,
    "max_mamba_cache_size": 48,
    "context_length": 512,
    "mamba_radix_cache_strategy": "extra_buffer",
    "speculative_algorithm": "NGRAM",
    "speculative_num_draft_tokens": 6,
    "speculative_ngram_max_bfs_breadth": 3,
}


@pytest.fixture(scope="module")
def expected():
    return expect(PROMPTS, NEW_TOKENS, "cpu")


@pytest.fixture(scope="module")
def run(engine, tmp_path_factory, expected):
    folder = for_sglang(tmp_path_factory.mktemp("trained"))
    batch = {"prompts": expected.prompts, "new_tokens": NEW_TOKENS}
    found = engine({"model_path": str(folder), **OPTIONS}, [batch, batch])
    assert found.status == 0, found.log[-4000:]
    return found


def test_tokens_are_those_of_transformers(run, expected):
    for answers in run.answers:
        found = compare([one["tokens"] for one in answers], expected)
        assert not found.wrong
        assert found.equal + found.dropped == PROMPTS * NEW_TOKENS
        assert found.dropped <= PROMPTS * NEW_TOKENS / 10


def test_drafts_and_the_cache_were_used(run, expected):
    first, again = (
        [sum(one[key] for one in answers) for key in ("cached", "accepted")] for answers in run.answers
    )
    assert first[0] == 0 < again[0]
    assert again[1] > 0
    assert max(map(len, expected.prompts)) > 64
    assert {name for line in run.watched for _, name in line["full"]} == {"acme"}
