"""Chooses one token from each row of logits, without sorting."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

import torch

from switchrail.engine.transfer import sent
from switchrail.params import SamplingParams, capturable, filters_of

_UNIT: Final = 1 << 40
"""The integer weight of the most likely token. Sums of integers don't depend on the order of summation."""

_UNFILTERED: Final = SamplingParams(temperature=1.0)

Choose = Callable[[torch.Tensor, Sequence[SamplingParams], Sequence[random.Random]], torch.Tensor]
"""A function with the arguments and the result of `choose`; a platform may provide its own."""

_BITS: Final = 11
"""Bits per digit of a sort key."""


@capturable
def choose(
    logits: torch.Tensor, params: Sequence[SamplingParams], draws: Sequence[random.Random]
) -> torch.Tensor:
    """Choose a token for each row, without waiting for the device.

    Args:
        logits: [R, vocabulary].
        params: Each row's sampling parameters.
        draws: Each row's source of random numbers. A sampled row takes exactly one number, so a request's
            draws depend only on its seed.

    Returns:
        [R] int64 token ids; -1 for rows whose largest logit is not finite.
    """
    best, tokens = logits.max(dim=-1)
    rows = [row for row, param in enumerate(params) if param.temperature > 0]
    if rows:
        index = sent(rows, torch.int64, logits.device, pin_memory=logits.is_cuda)
        sampled = [params[row] for row in rows]
        numbers = [draws[row].random() for row in rows]
        seeds = sent(numbers, torch.float64, logits.device, pin_memory=logits.is_cuda)
        tokens[index] = _pick(weigh(logits[index], sampled), seeds.unsqueeze(1))
    return tokens.where(best.isfinite(), -1)


def weigh(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """The weights of the tokens that the filters keep.

    If tokens are ordered by decreasing probability, then by index, every filter keeps a prefix of this order.
    So the filters together keep all tokens above some logit, and the first few tokens with this logit.

    Args:
        logits: [R, vocabulary].
        params: R parameters with a temperature above 0.

    Returns:
        [R, vocabulary] int64, in proportion to the probabilities, and 0 for tokens that a filter drops;
        undefined, but not all 0, for rows whose largest logit is not finite.
    """
    logits = logits.float()
    best = logits.amax(dim=-1, keepdim=True)
    size = logits.shape[-1]
    values = [filters_of(param) for param in params]
    numbers = sent(values, torch.float64, logits.device, pin_memory=logits.is_cuda)
    temperature, top_k, top_p, min_p = numbers.unsqueeze(1).unbind(-1)
    finite = best.isfinite()
    # the tokens of rows whose largest logit is not finite are ignored
    logits, best = logits.where(finite, 0.0), best.where(finite, 0.0)
    # otherwise a subnormal temperature would give 0 / 0, and an infinite one infinity / infinity
    scores = (logits - best) / temperature.float().clamp(min=1e-30, max=1e30)
    weights = (scores.double().exp() * _UNIT).long()
    kept = weights >= (min_p * _UNIT).long()
    keys = _keys(logits)
    whole = weights.sum(-1, keepdim=True)
    if any(param.top_k is not None and param.top_k < size for param in params):
        count = top_k.clamp(max=size).long()
        cut = _cut(keys, torch.ones_like(weights), count)
        above = keys > cut
        few = above | _first(keys == cut, count - above.sum(-1, keepdim=True))
        kept &= few
        whole = weights.where(few, 0).sum(-1, keepdim=True)
    if any(param.top_p < 1 for param in params):
        most = (top_p * whole).ceil().long()
        cut = _cut(keys, weights, most)
        above, equal = keys > cut, keys == cut
        rest = most - weights.where(above, 0).sum(-1, keepdim=True)
        each = weights.where(equal, 0).amax(-1, keepdim=True).clamp(min=1)
        kept &= above | _first(equal, -(-rest // each)) | (top_p >= 1)
    return weights.where(kept, 0)


def probabilities(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """The distribution that each row's token is drawn from, [R, vocabulary] float64; see `weigh`."""
    weights = weigh(logits, params)
    return weights.double() / weights.sum(-1, keepdim=True)


def draw(odds: torch.Tensor, draws: Sequence[random.Random], choose: Choose) -> torch.Tensor:
    """Draw a token from each row of a distribution, without further filters.

    Args:
        odds: [R, vocabulary] float64, in proportion to the probabilities.
        draws: R sources of random numbers; each gives one.
        choose: Chooses the tokens.

    Returns:
        [R] int64 token ids.
    """
    return choose(odds.log().float(), [_UNFILTERED] * len(draws), draws)


def _pick(weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Invert each row's distribution function.

    Args:
        weights: [R, vocabulary] int64, not all 0.
        numbers: [R, 1] float64, at least 0 and below 1.

    Returns:
        [R] int64 token ids.
    """
    masses = weights.cumsum(-1)
    total = masses[:, -1:]
    target = (numbers * total).long().minimum(total - 1)
    return torch.searchsorted(masses, target, right=True).squeeze(-1).clamp(max=weights.shape[-1] - 1)


def _keys(logits: torch.Tensor) -> torch.Tensor:
    """Integers that sort like float32 logits; equal for equal logits."""
    bits = (logits + 0.0).view(torch.int32)  # maps -0.0 to 0.0
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _cut(keys: torch.Tensor, masses: torch.Tensor, most: torch.Tensor) -> torch.Tensor:
    """The least key of each row such that the larger keys together have a mass below `most`.

    It is found digit by digit, from the highest digit.

    Args:
        keys: [R, vocabulary] int32.
        masses: [R, vocabulary] int64.
        most: [R, 1] int64, from 1 to the mass of a row.

    Returns:
        [R, 1] int32.
    """
    numbers = keys.long() + (1 << 31)
    found = torch.zeros_like(most)
    for shift in range(32 - 32 % _BITS, -1, -_BITS):
        prefixes = numbers >> shift
        bins = masses.new_zeros(len(keys), 1 << _BITS)
        inside = masses.where(prefixes >> _BITS == found, 0)
        bins.scatter_add_(1, prefixes & ((1 << _BITS) - 1), inside)
        sums = bins.cumsum(-1)
        above = sums[:, -1:] - sums
        digit = (above >= most).sum(-1, keepdim=True)
        most = most - above.gather(1, digit)
        found = (found << _BITS) | digit
    return (found - (1 << 31)).int()


def _first(flags: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Keeps the first `count` set flags of each row, and clears the others."""
    return flags & (flags.cumsum(-1) <= count)
