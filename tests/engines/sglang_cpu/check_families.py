"""SGLang's real Engine serves small models of other families with Switchrail's backends."""

import families
import pytest
import torch

NEW_TOKENS = 5
LENGTHS = (3, 9, 70)
TRIES = 40
"""The number of random prompts to try per length. The first one without a near tie after it is used."""
OURS = {"linear_attn_backend": "switchrail", "attention_backend": "switchrail"}
OPTIONS = {"max_running_requests": 4, "max_total_tokens": 512, "max_mamba_cache_size": 16}
OPS = {
    "bailing_moe_v2_5": {"lightning"},
    "deepseek_v3": set(),
    "falcon_h1": {"mamba2", "short_conv"},
    "kimi_linear": {"kda", "short_conv"},
    "lfm2": {"short_conv"},
}
"""The ops of each family's layers with states. Each family has softmax or latent attention too."""


def prompts(model):
    """A prompt of each length, with its greedy tokens, which have no near tie."""
    for length in LENGTHS:
        for seed in range(TRIES):
            drawn = torch.randint(2, 250, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
            tokens, sure = families.greedy(model, drawn, NEW_TOKENS)
            if sure == NEW_TOKENS:
                yield drawn, tokens
                break


@pytest.mark.parametrize("family", OPS)
def test_tokens_are_those_of_the_reference_and_no_layer_is_bypassed(family, engine, tmp_path):
    expected = [*prompts(families.save(family, tmp_path))]
    assert len(expected) == len(LENGTHS)
    batch = {"prompts": [prompt for prompt, _ in expected], "new_tokens": NEW_TOKENS}
    run = engine({"model_path": str(tmp_path), **OPTIONS, **OURS, "disable_radix_cache": True}, [batch])
    assert run.status == 0, run.log[-4000:]
    assert [one["tokens"] for one in run.answers[0]] == [tokens for _, tokens in expected]
    assert len(run.batches("DECODE")) >= NEW_TOKENS - 1
    for line in run.watched:
        served = {(op, phase) for op, phase, _ in line.get("backends", [])}
        assert served == {(op, phase) for op in OPS[family] for phase in ("prefill", "decode")}
        assert {phase for phase, _ in line["full"]} == {"prefill", "decode"}
        assert (line.get("bypassed", 0), line["full_bypassed"]) == (0, 0)
