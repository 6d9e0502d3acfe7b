"""Drafts of tokens in each family, with forced acceptance."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from switchrail.engine import SamplingParams

from tests.engine.drafting import FORCED, Oracle, use
from tests.families.conftest import OPTIONS, Family
from tests.families.made import CONFIGS


@pytest.mark.parametrize("model_type", CONFIGS)
def test_greedy_tokens_are_those_without_drafts(model_type: str, family_of: Callable[[str], Family]) -> None:
    """Ragged prompts in a batch get the same greedy tokens with drafts as without.

    Random numbers of drafted tokens are accepted.
    """
    family = family_of(model_type)
    prompts, params = family.prompts((1, 2, 7, 33, 70)), SamplingParams(max_new_tokens=24, ignore_eos=True)
    with family.engine("torch", "cpu") as engine:
        expected = engine.generate(prompts, params)
    with family.engine("torch", "cpu", options={**OPTIONS, "draft": "ngram"}) as engine:
        oracle = Oracle(expected, FORCED["random"])
        use(engine, oracle)
        assert engine.generate(prompts, params) == expected
        assert {0, 1, 2, 3} <= {right for right, _ in oracle.steps}
        assert engine.stats.accepted_tokens > 20
