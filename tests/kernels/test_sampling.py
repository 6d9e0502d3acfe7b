"""Sampling by a kernel, compared with Python code that sorts the tokens and draws in the same way."""

from __future__ import annotations

import math
import random
from itertools import product
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from switchrail import SamplingParams
from switchrail.params import numbers_of
from switchrail_kernels.sampling import choose
from switchrail_kernels.sampling.choose import choose_tokens

from tests import filters as shared

WORD = (1 << 64) - 1
FILTERS = [*shared.FILTERS, {"top_k": 10**400, "top_p": 0.5}]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch, device):
    """Use small blocks, so that short rows have several blocks."""
    if device.type == "cpu":
        monkeypatch.setattr(choose, "BLOCK", 64)


def uniform(seed, number):
    z = (seed + (number + 1) * 0x9E3779B97F4A7C15) & WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return ((z ^ (z >> 31)) >> 11) / (1 << 53)


def kept_of(logits, temperature, top_k, top_p, min_p):
    """The tokens that the filters keep, all tokens by descending logits, and the weights of all tokens."""
    values = logits.double().tolist()
    best = max(values)
    weights = [math.exp((value - best) / max(temperature, 1e-30)) for value in values]
    order = sorted(range(len(values)), key=lambda token: (-values[token], token))
    few = order[: int(top_k)]
    whole, mass, kept = math.fsum(weights[token] for token in few), 0.0, []
    for token in few:
        if (top_p < 1 and mass >= top_p * whole) or weights[token] < min_p or weights[token] == 0:
            break
        kept.append(token)
        mass += weights[token]
    return kept, order, weights


def oracle(logits, numbers):
    """Draw until a token is drawn that the filters keep. After a dropped one, only better ones remain."""
    temperature, top_k, top_p, min_p, seed = numbers
    if temperature == 0:
        return int(logits.argmax())
    kept, order, weights = kept_of(logits, temperature, top_k, top_p, min_p)
    first = order
    if top_p < 1 and top_k < len(order):  # keep all tokens whose logit equals that of the last kept one
        first = [token for token in order if logits[token] >= logits[order[int(top_k) - 1]]]
    for number in range(1000):
        first = [token for token in first if weights[token] >= max(min_p, 1e-300)]
        target = uniform(int(seed), number) * math.fsum(weights[token] for token in first)
        mass, drawn = 0.0, None
        for token in sorted(first):
            if mass > target:
                break
            drawn = token
            mass += weights[token]
        if drawn in kept:
            return drawn
        first = first[: first.index(drawn)]
    raise AssertionError("no token is kept")


@pytest.mark.parametrize(
    ("kind", "size"), [("normal", 1), *((kind, 150) for kind in ("normal", "peaked", "ties", "equal", "one"))]
)
def test_draws_are_those_of_the_oracle(kind, size, device, dtype):
    random_numbers = torch.Generator().manual_seed(size)
    logits = torch.randn(len(FILTERS) * 2, size, generator=random_numbers) * 2
    if kind == "peaked":
        logits = logits * 8
    elif kind == "ties":
        logits = logits.round()
    elif kind == "equal":
        logits = torch.zeros_like(logits)
    elif kind == "one":
        logits = torch.full_like(logits, -torch.inf)
        logits[:, size // 2] = -3.0
    logits = logits.to(device, dtype)
    params = [
        SamplingParams(temperature=temperature, **filters)
        for temperature, filters in product((0.7, 1.5), FILTERS)
    ]
    numbers = numbers_of(params, [random.Random(i) for i in range(len(params))])
    found = choose_tokens(logits, params, [random.Random(i) for i in range(len(params))])
    assert found.tolist() == [
        oracle(row, each) for row, each in zip(logits.float().cpu(), numbers, strict=True)
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("size", [3072, 151_936])
def test_long_rows_compiled(size, device, dtype):
    logits = torch.randn(len(FILTERS) * 2, size, generator=torch.Generator().manual_seed(1)) * 3
    logits = logits.to(device, dtype)
    params = [SamplingParams(temperature=0.8, **filters) for filters in FILTERS * 2]
    draws = [random.Random(i) for i in range(len(params))]
    found = choose_tokens(logits, params, draws).tolist()
    numbers = numbers_of(params, [random.Random(i) for i in range(len(params))])
    for row, token, (temperature, *filters, _) in zip(logits.float().cpu(), found, numbers, strict=True):
        assert token in kept_of(row, temperature, *filters)[0]
    assert choose_tokens(logits, params, [random.Random(i) for i in range(len(params))]).tolist() == found


@pytest.mark.gpu
def test_counts_follow_the_distribution(device):
    """Counts of 60,000 draws pass a chi-square test for each filter.

    Only for compiled kernels, as the interpreter is slow.
    """
    count, size = 60_000, 40
    logits = torch.randn(1, size, generator=torch.Generator().manual_seed(1)) * 2
    for filters in FILTERS:
        params = SamplingParams(temperature=1.3, **filters)
        source = random.Random(5)
        rows = logits.to(device).expand(count, -1).contiguous()
        found = torch.bincount(
            choose_tokens(rows, [params] * count, [source] * count), minlength=size
        ).tolist()
        kept, _, weights = kept_of(logits[0], *numbers_of([params], [source])[0][:4])
        whole = sum(weights[token] for token in kept)
        expected = {token: count * weights[token] / whole for token in kept}
        assert sum(found[token] for token in kept) == count
        square = sum((found[token] - many) ** 2 / many for token, many in expected.items())
        freedom = len(kept) - 1
        assert square <= freedom + 5 * math.sqrt(2 * freedom) + 1e-9


def test_draws_are_the_same_alone_and_in_any_batch(device, dtype):
    logits = torch.randn(7, 200, generator=torch.Generator().manual_seed(2)).to(device, dtype)
    params = [SamplingParams(temperature=i / 3, top_p=0.8) for i in range(7)]
    together = choose_tokens(logits, params, [random.Random(i) for i in range(7)]).tolist()
    alone = [choose_tokens(logits[i : i + 1], [params[i]], [random.Random(i)]).item() for i in range(7)]
    assert together == alone
    wide = torch.full((7, 512), torch.nan, device=device, dtype=dtype)
    wide[:, :200] = logits
    assert choose_tokens(wide[:, :200], params, [random.Random(i) for i in range(7)]).tolist() == together


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0, 1e-300])
def test_a_row_that_is_not_finite_gives_no_token(bad, temperature, device, dtype):
    logits = torch.zeros(4, 200, device=device, dtype=dtype)
    logits[0, 3] = logits[2, 150] = 9.0
    logits[1, 130] = bad
    logits[3] = -torch.inf
    params = [SamplingParams(temperature=temperature, top_k=1)] * 3 + [SamplingParams(temperature=1.0)]
    found = choose_tokens(logits, params, [random.Random(0)] * 4)
    assert found.tolist() == [3, -1, 150, -1]


@pytest.mark.parametrize("size", [1, 5, 200])
def test_a_greedy_batch_takes_the_first_of_the_largest(size, device, dtype):
    logits = torch.randn(9, size, generator=torch.Generator().manual_seed(3)).round().to(device, dtype)
    logits[6, size // 2] = math.nan
    logits[7, size - 1] = math.inf
    logits[8] = -math.inf
    expected = [row.index(max(row)) for row in logits[:6].tolist()] + [-1] * 3
    greedy, sampled = [SamplingParams()] * 9, [SamplingParams(temperature=1e-3, top_k=1)] * 9
    for params in (greedy, sampled, greedy):
        assert choose_tokens(logits, params, [random.Random(0)] * 9).tolist() == expected
    params = list(greedy)
    choose_tokens(logits, params, [random.Random(0)] * 9)
    params[3] = SamplingParams(temperature=1e30)
    drawn = [choose_tokens(logits, params, [random.Random(i)] * 9).tolist()[3] for i in range(20)]
    assert (len(set(drawn)) > 1) == (size > 1)


@pytest.mark.parametrize("temperature", [1e-300, 1e-30, 1e-3])
def test_a_low_temperature_takes_the_best(temperature, device, dtype):
    logits = torch.tensor([[0.0, 5.0, 4.0, -math.inf]], device=device, dtype=dtype)
    params = [SamplingParams(temperature=temperature)]
    assert choose_tokens(logits, params, [random.Random(0)]).tolist() == [1]


def test_the_largest_random_number_draws_a_kept_token(device, dtype, monkeypatch):
    seed = next(n for n in range(1 << 20) if uniform(n, 0) > 1 - 1e-5)
    source = SimpleNamespace(random=lambda: seed / (1 << 53))
    logits = torch.tensor([[1.0, 1.0, -math.inf, 0.0, -math.inf]], device=device, dtype=dtype)
    assert choose_tokens(logits, [SamplingParams(temperature=1.0)], [source]).tolist() == [3]
