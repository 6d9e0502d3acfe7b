"""Decides which drafted tokens a model accepts, without waiting for the device."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Final, cast

import numpy as np
import torch

from switchrail.engine.drafts import NONE, Drafted
from switchrail.engine.sampling import Choose, draw, probabilities
from switchrail.engine.transfer import sent
from switchrail.params import SamplingParams

_GREEDY: Final = SamplingParams()


class _Number:
    """A source of random numbers that repeats one number, for all rows of the same depth in a tree."""

    def __init__(self, number: float) -> None:
        self._number = number

    def random(self) -> float:
        return self._number


def choose_rows(
    logits: torch.Tensor,
    widths: Sequence[int],
    drafted: Drafted,
    params: Sequence[SamplingParams],
    draws: Sequence[random.Random],
    choose: Choose,
) -> torch.Tensor:
    """Choose the token after each verified row.

    A draft is accepted if it equals the token that was chosen after the row that the draft follows.
    A draft without a distribution is compared with the token that the model chooses, from the same random
    number as without drafts. So the chosen tokens don't depend on such drafts. In sampled requests, drafts
    that were drawn from a distribution are accepted by rejection sampling.

    Args:
        logits: [R, vocabulary], for each of N sequences the row of its newest token, then one row per draft,
            then padding.
        widths: Each sequence's number of rows.
        drafted: The drafted tokens of each sequence.
        params: N sampling parameters.
        draws: N sources of random numbers. A sampled sequence takes a number for each token that it may get;
            if its drafts have distributions, a number for each draft, and one more.
        choose: Chooses one token from each row.

    Returns:
        [R] int64; -1 for rows whose largest logit is not finite. Undefined for padding, for rejected drafts'
        rows, and for rows that follow these.
    """
    row_params: list[SamplingParams] = []
    row_draws: list[random.Random] = []
    drawn = [
        number
        for number, (tokens, param) in enumerate(zip(drafted.tokens, params, strict=True))
        if drafted.probabilities is not None and len(tokens) and param.temperature > 0
    ]
    left = set(drawn)
    for number, (width, param, one) in enumerate(zip(widths, params, draws, strict=True)):
        used = _GREEDY if number in left else param
        count = 1 + len(drafted.tokens[number])
        row_params += [used] * count + [_GREEDY] * (width - count)
        if drafted.parents is None or used.temperature == 0:
            row_draws += [one] * width
            continue
        depths = drafted.depths(number)
        numbers = [cast(random.Random, _Number(one.random())) for _ in range(max(depths) + 1)]
        row_draws += [numbers[depth] for depth in depths] + [one] * (width - count)
    chosen = choose(logits, row_params, row_draws)
    if drawn:
        starts = [0, *accumulate(widths)]
        _reject(chosen, logits, [starts[n] for n in drawn], drawn, drafted, params, draws, choose)
    return chosen


def _reject(
    chosen: torch.Tensor,
    logits: torch.Tensor,
    starts: Sequence[int],
    drawn: Sequence[int],
    drafted: Drafted,
    params: Sequence[SamplingParams],
    draws: Sequence[random.Random],
    choose: Choose,
) -> None:
    """Choose tokens by rejection sampling (Leviathan et al., 2023, arXiv 2211.17192) of siblings in turn.

    The drafts that follow the same row are tried in order. p is the model's distribution after this row, and
    q the distribution that a draft was drawn from. If siblings were drawn without replacement, q excludes the
    siblings before the draft. The draft is accepted with probability min(1, p / q). Otherwise the normalised
    max(0, p - q) becomes p for the next sibling. The token after the last accepted row is drawn from the p
    that remains. So each token has the model's distribution, however many siblings there are.

    Args:
        chosen: [R] int64, receives the tokens.
        logits: See `choose_rows`.
        starts: The first row of each of M sequences.
        drawn: The indices of these sequences.
        drafted: See `choose_rows`.
        params: See `choose_rows`.
        draws: See `choose_rows`.
        choose: See `choose_rows`.
    """
    assert drafted.probabilities is not None
    device, pinned = logits.device, logits.is_cuda
    lengths = np.fromiter(map(len, drafted.tokens), dtype=np.int64, count=len(drafted.tokens))
    firsts, counts = (lengths.cumsum() - lengths)[list(drawn), None], lengths[list(drawn), None]
    most = 1 + int(counts.max())
    columns = np.arange(most)
    is_draft = (columns > 0) & (columns <= counts)
    rows = np.array(starts)[:, None] + np.where(is_draft, columns, 0)
    places = np.where(is_draft, firsts + columns - 1, 0)
    parents, numbers = np.where(is_draft, columns - 1, NONE), np.zeros(is_draft.shape)
    if drafted.parents is not None:
        parents[is_draft] = [*chain.from_iterable(map(drafted.parent_rows, drawn))]
    numbers[is_draft] = [draws[n].random() for n in drawn for _ in range(lengths[n])]
    table = np.stack([rows, places, parents])
    row, place, parent = sent(table, torch.int64, device, pin_memory=pinned)
    number = sent(numbers, torch.float64, device, pin_memory=pinned)
    own = logits[row]
    finite = own.amax(-1).isfinite()
    p = probabilities(own.flatten(0, 1), [params[n] for n in drawn for _ in range(most)]).view(own.shape)
    tokens = flat_tokens(drafted, device)[place]
    at = torch.zeros(len(drawn), 1, dtype=torch.int64, device=device)
    rest = p[:, 0]
    for i in range(1, most):
        token, q = tokens[:, i : i + 1], drafted.probabilities[place[:, i]].double()
        less, is_equal = _without(rest, q)
        is_next = (parent[:, i : i + 1] == at) & finite.gather(1, at)
        passes = _is_accepted(rest.gather(1, token), q.gather(1, token), number[:, i : i + 1])
        accepted = is_next & (passes | is_equal)
        before = row.gather(1, at)
        chosen[before] = token.where(accepted, chosen[before])
        rest = torch.where(accepted, p[:, i], less.where(is_next, rest))
        at = at.masked_fill(accepted, i)
    last = draw(rest, [draws[n] for n in drawn], choose)
    chosen[row.gather(1, at).squeeze(1)] = last.where(finite.gather(1, at).squeeze(1), -1)


def flat_tokens(drafted: Drafted, device: torch.device) -> torch.Tensor:
    """All drafted tokens, [D] int64 on the device."""
    if not any(isinstance(tokens, torch.Tensor) and len(tokens) for tokens in drafted.tokens):
        values = [*chain.from_iterable(drafted.tokens)]
        return sent(values, torch.int64, device, pin_memory=device.type == "cuda")
    parts = [torch.as_tensor(tokens, device=device) for tokens in drafted.tokens if len(tokens)]
    return torch.cat(parts)


def _is_accepted(p: torch.Tensor, q: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Whether drafts are accepted, with probability min(1, p / q)."""
    return numbers * q < p


def _without(p: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The normalised max(0, p - q), and whether p and q are equal up to rounding, [M, 1] bool."""
    less = (p - q).clamp(min=0)
    mass = less.sum(-1, keepdim=True)
    is_equal = mass <= 0
    return less / mass.masked_fill(is_equal, 1), is_equal


def follow(
    chosen: torch.Tensor, tokens: torch.Tensor, parents: torch.Tensor, *, are_trees: bool = True
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Follow the chosen tokens through the drafted ones, as far as they agree.

    Args:
        chosen: [N, X] int64, the token chosen after each row of a sequence.
        tokens: [N, X] int64, the token of each row.
        parents: [N, X] int64, the earlier row that each row follows; negative for the first row and padding.
        are_trees: Whether the rows may form trees; chains need fewer operations.

    Returns:
        last: [N] int64, the last accepted row.
        count: [N, 1] int64, the number of accepted drafts.
        path: [N, X] int64, the accepted rows in order, from row 0. The remaining entries are their own index.
        accepted: [N, X] bool, whether each row is accepted.
    """
    if not are_trees:
        return _follow_chains(chosen, tokens, parents)
    columns = torch.arange(tokens.shape[1], device=tokens.device)
    path = columns.expand_as(tokens).clone()
    last = torch.zeros_like(tokens[:, :1])
    count = torch.zeros_like(last)
    accepted = [torch.ones_like(last, dtype=torch.bool)]
    for row in range(1, tokens.shape[1]):
        own = slice(row, row + 1)
        is_next = (parents[:, own] == last) & (tokens[:, own] == chosen.gather(1, last))
        last = last.masked_fill(is_next, row)
        count = count + is_next
        path = path.masked_fill(is_next & (columns == count), row)
        accepted.append(is_next)
    return last.squeeze(1), count, path, torch.cat(accepted, 1)


def _follow_chains(
    chosen: torch.Tensor, tokens: torch.Tensor, parents: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Follow chains; see `follow`."""
    agrees = (tokens[:, 1:] == chosen[:, :-1]) & (parents[:, 1:] >= 0)
    accepted = agrees.cumprod(1)
    count = accepted.sum(1, keepdim=True)
    columns = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    return count.squeeze(1), count, columns, columns <= count
