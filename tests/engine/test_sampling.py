"""Sampling: filters compared with those of transformers, and draws compared with the distribution."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from switchrail.engine import SamplingParams, sampling
from switchrail.engine.sampling import choose
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from tests.filters import FILTERS

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
def test_draws_follow_the_filtered_distribution(
    params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts of 20,000 draws lie within five standard deviations, and no filtered token is drawn.

    All draws are from one row, whose weights are computed once.
    """
    weigh = sampling.weigh
    monkeypatch.setattr(sampling, "weigh", lambda rows, of: weigh(rows[:1], of[:1]).expand(len(rows), -1))
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


def test_the_largest_random_number_draws_a_kept_token() -> None:
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
    for filters in ({"top_k": 1}, {"top_p": 0.9}):
        params = SamplingParams(temperature=temperature / 10, **filters)
        assert choose(logits, [params] * 3, [random.Random(0)] * 3).tolist() == [3, -1, 5]


def oracle(logits: torch.Tensor, params: SamplingParams, source: random.Random) -> int:
    """Sort, apply the filters one by one, and invert the distribution function of the remaining tokens, in
    the order of their ids."""
    values = [x.item() for x in logits]
    scores = (logits - logits.max()) / float(params.temperature)
    weights = [int(x) for x in (scores.double().exp() * 2**40).tolist()]
    order = sorted(range(len(values)), key=lambda token: (-values[token], token))
    few = order[: params.top_k or len(order)]
    whole, before, kept = sum(weights[token] for token in few), 0, []
    for token in few:
        if params.top_p < 1 and before >= params.top_p * whole:
            break
        before += weights[token]
        if weights[token] >= int(params.min_p * 2**40):
            kept.append(token)
    target = int(int(source.random() * 2**53) / 2**53 * sum(weights[token] for token in kept))
    for token in sorted(kept):
        target -= weights[token]
        if target < 0:
            return token
    raise AssertionError("nothing is kept")


@pytest.mark.parametrize("kind", ["normal", "peaked", "ties", "equal", "one", "bfloat16"])
def test_draws_equal_those_of_an_oracle_that_sorts(kind: str) -> None:
    logits = torch.randn(len(FILTERS) * 8, 300, generator=torch.Generator().manual_seed(4)) * 2
    if kind == "peaked":
        logits *= 8
    elif kind == "ties":
        logits = logits.round()
    elif kind == "equal":
        logits.zero_()
    elif kind == "one":
        logits.fill_(float("-inf"))[:, 7] = -3.0
    elif kind == "bfloat16":
        logits = logits.bfloat16()
    params = [SamplingParams(temperature=0.8, **each) for each in FILTERS for _ in range(8)]  # type: ignore[arg-type]
    found = choose(logits, params, [random.Random(i) for i in range(len(params))]).tolist()
    assert found == [
        oracle(row, param, random.Random(i))
        for i, (row, param) in enumerate(zip(logits.float(), params, strict=True))
    ]


def test_nothing_is_sorted() -> None:
    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen: list[str] = []
    params = [SamplingParams(temperature=1.0, **each) for each in FILTERS]  # type: ignore[arg-type]
    with Watch():
        choose(torch.randn(len(params), 100), params, [random.Random(0)] * len(params))
    assert len(seen) > 100
    assert not [
        name for name in seen if any(word in name for word in ("aten.sort", "topk", "item", "nonzero"))
    ]


@pytest.mark.parametrize("size", [300, 20_000])
def test_draws_are_the_same_in_any_batch(size: int) -> None:
    logits = torch.randn(9, size, generator=torch.Generator().manual_seed(5)) * 3
    params = [SamplingParams(temperature=1.2, **FILTERS[i]) for i in range(9)]  # type: ignore[arg-type]
    together = choose(logits, params, [random.Random(i) for i in range(9)]).tolist()
    alone = [choose(logits[i : i + 1], [params[i]], [random.Random(i)]).item() for i in range(9)]
    assert together == alone
