"""Drawing tokens: the filters against transformers' own, the draws against the distribution."""

from __future__ import annotations

import random

import pytest
import torch
from switchrail.engine import SamplingParams
from switchrail.engine.sampling import choose
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

VOCABULARY = 50


def expected_distribution(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    warpers = [TemperatureLogitsWarper(float(params.temperature))]
    if params.top_k is not None:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        warpers.append(TopPLogitsWarper(params.top_p))
    if params.min_p > 0:
        warpers.append(MinPLogitsWarper(params.min_p))
    for warper in warpers:
        logits = warper(None, logits)
    return logits.double().softmax(-1)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=2.0, top_k=5),
        SamplingParams(temperature=1.0, top_p=0.6),
        SamplingParams(temperature=1.0, min_p=0.2),
        SamplingParams(temperature=1.5, top_k=20, top_p=0.9, min_p=0.05),
        SamplingParams(temperature=1.0, top_k=10**400),
    ],
    ids=str,
)
def test_draws_follow_the_filtered_distribution(params: SamplingParams) -> None:
    """Counts of 20,000 draws lie within five standard deviations, and nothing filtered is drawn."""
    logits = torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(1)) * 2
    draws = 20_000
    source = random.Random(3)
    tokens = choose(logits.expand(draws, -1), [params] * draws, [source] * draws)
    found = torch.bincount(tokens, minlength=VOCABULARY).double()
    p = expected_distribution(logits, params)[0]
    assert not found[p == 0].any()
    deviation = (draws * p * (1 - p)).sqrt()
    assert ((found - draws * p).abs() <= 5 * deviation + 1e-6).all()


def test_greedy_and_sampled_rows_share_a_batch() -> None:
    logits = torch.randn(4, VOCABULARY, generator=torch.Generator().manual_seed(2))
    greedy, sampled = SamplingParams(), SamplingParams(temperature=1.0)
    params = [greedy, sampled, greedy, sampled]
    tokens = choose(logits, params, [random.Random(i) for i in range(4)]).tolist()
    alone = [choose(logits[i : i + 1], [params[i]], [random.Random(i)]).item() for i in range(4)]
    assert tokens == alone
    assert tokens[0] == logits[0].argmax()
    assert tokens[2] == logits[2].argmax()


def test_one_draw_is_taken_for_a_sampled_row_and_none_for_a_greedy_one() -> None:
    logits = torch.randn(2, VOCABULARY)
    sources = [random.Random(0), random.Random(0)]
    choose(logits, [SamplingParams(), SamplingParams(temperature=1.0, top_k=1)], sources)
    untouched = random.Random(0)
    assert sources[0].getstate() == untouched.getstate()
    untouched.random()
    assert sources[1].getstate() == untouched.getstate()


@pytest.mark.parametrize("temperature", [1e-300, 1e-30, 1e-3])
def test_a_low_temperature_is_greedy(temperature: float) -> None:
    logits = torch.tensor([[0.0, 5.0, 4.0, -torch.inf]])
    assert choose(logits, [SamplingParams(temperature=temperature)], [random.Random(0)]).tolist() == [1]


def test_the_last_number_below_one_takes_a_token_that_can_be() -> None:
    class Top(random.Random):
        def random(self) -> float:
            return 1 - 2**-53

    logits = torch.tensor([[1.0, 1.0, -torch.inf, 0.0]])
    assert choose(logits, [SamplingParams(temperature=1.0, top_k=2)], [Top()]).tolist() == [1]
    assert choose(logits, [SamplingParams(temperature=1.0)], [Top()]).tolist() == [3]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_gives_no_token_and_spares_the_others(
    bad: float, temperature: float
) -> None:
    logits = torch.zeros(3, 8)
    logits[0, 3] = logits[2, 5] = 9.0
    logits[1, 4] = bad
    params = SamplingParams(temperature=temperature, top_k=1)
    assert choose(logits, [params] * 3, [random.Random(0)] * 3).tolist() == [3, -1, 5]
