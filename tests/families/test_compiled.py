"""Each family on a GPU, with compiled kernels."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from switchrail.engine import SamplingParams

from tests.engine.test_parity import ieee_products, row_errors
from tests.families.conftest import OPTIONS, Family
from tests.families.made import CONFIGS

__all__ = ["ieee_products"]

EAGER = ("nemotron_h", "gpt_oss")
"""Families with transformers' own experts, which wait for the device in float32, so nothing is captured."""

pytestmark = [pytest.mark.gpu, pytest.mark.families]


@pytest.mark.usefixtures("ieee_products")
@pytest.mark.parametrize("model_type", CONFIGS)
def test_compiled_kernels_serve(model_type: str, family_of: Callable[[str], Family]) -> None:
    """Compiled kernels match transformers in float32.

    In bfloat16, their mean error is at most twice that of transformers in bfloat16.
    """
    family = family_of(model_type)
    prompts = family.prompts((1, 21, 64, 150))
    runs = family.run(prompts, 32, backend="triton", device="cuda", prefill_chunk=64)
    family.check(prompts, runs, device="cuda")

    halved = copy.deepcopy(family.model).to("cuda", torch.bfloat16)
    runs = family.run(prompts, 1, backend="triton", device="cuda", dtype="bfloat16", prefill_chunk=64)
    ours, theirs = [], []
    with torch.inference_mode():
        for prompt, (_, rows) in zip(prompts, runs, strict=True):
            given = torch.tensor([prompt], device="cuda")
            exact = family.model.to("cuda")(given, use_cache=False).logits[0].cpu()
            ours.append(row_errors(rows, exact))
            theirs.append(row_errors(halved(given, use_cache=False).logits[0].cpu(), exact))
    mean, limit = torch.cat(ours).mean().item(), torch.cat(theirs).mean().item()
    print(f"{model_type}: bfloat16 {mean:.2e}, transformers' {limit:.2e}")
    assert mean <= 2 * limit


@pytest.mark.usefixtures("ieee_products")
@pytest.mark.parametrize("model_type", CONFIGS)
def test_decodes_are_captured(model_type: str, family_of: Callable[[str], Family]) -> None:
    """Decodes in graphs compute the tokens of eager ones. Decodes that can't be captured give the reason."""
    family = family_of(model_type)
    prompts = family.prompts((1, 21, 64, 150))
    expected = [tokens for tokens, _ in family.run(prompts, 32, backend="triton", device="cuda")]
    options = {**OPTIONS, "max_sequences": 4, "capture": "decode", "max_length": 512}
    with family.engine(backend="triton", device="cuda", options=options) as engine:
        reasons = [state.reason for state in engine.graphs if state.kind == "decode"]
        print(f"{model_type}: {reasons.count(None)} of {len(reasons)} decodes captured, {set(reasons)}")
        assert reasons
        assert all(reason != "" for reason in reasons)
        if model_type not in EAGER:
            assert set(reasons) == {None}
        outputs = engine.generate(prompts, SamplingParams(max_new_tokens=32, ignore_eos=True))
    assert [list(output.tokens) for output in outputs] == expected
