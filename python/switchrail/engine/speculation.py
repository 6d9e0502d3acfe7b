"""Decides which drafted tokens a model accepts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import chain, islice

import torch

from switchrail.engine.drafts import Drafted
from switchrail.engine.sampling import UNIT, draw, pick
from switchrail.engine.transfer import sent
from switchrail.params import SamplingParams

Choose = Callable[[torch.Tensor, Sequence[SamplingParams], Sequence[random.Random]], torch.Tensor]
"""See `switchrail.engine.sampling.choose`."""


def verify(
    logits: torch.Tensor,
    drafted: Drafted,
    params: Sequence[SamplingParams],
    draws: Sequence[random.Random],
    choose: Choose,
) -> list[list[int]]:
    """Choose tokens after verification, waiting for the device.

    A draft that was not drawn is accepted if the model chooses it too, with the same random number as without
    drafts. So it is accepted with the model's probability, and neither greedy nor sampled tokens depend on
    drafts. Each sequence then takes one random number per new token. Drawn drafts of sampled requests are
    accepted by rejection sampling.

    Args:
        logits: [R, vocabulary], for each of N sequences the row of its newest token and one per draft.
        drafted: The drafted tokens of each sequence.
        params: N sampling parameters.
        draws: N sources of random numbers.
        choose: Chooses one token from each row.

    Returns:
        For each sequence the accepted drafted tokens, then the model's own next token; -1 for a row whose
        largest logit is not finite.
    """
    rows = [len(tokens) + 1 for tokens in drafted.tokens]
    row_params = [param for param, count in zip(params, rows, strict=True) for _ in range(count)]
    row_draws = [draw for draw, count in zip(draws, rows, strict=True) for _ in range(count)]
    if drafted.probabilities is not None:
        chosen = _reject(logits, drafted.tokens, drafted.probabilities, row_params, row_draws, choose)
        return _runs(chosen.tolist(), drafted.tokens)
    states = [
        one.getstate() if tokens and param.temperature > 0 else None
        for tokens, param, one in zip(drafted.tokens, params, draws, strict=True)
    ]
    runs = _runs(choose(logits, row_params, row_draws).tolist(), drafted.tokens)
    for one, state, run in zip(draws, states, runs, strict=True):
        if state is not None:
            one.setstate(state)
            for _ in run:
                one.random()
    return runs


def _runs(chosen: list[int], drafted: Sequence[Sequence[int]]) -> list[list[int]]:
    """For each sequence its chosen tokens up to the first one that is not the drafted one."""
    runs, left = [], iter(chosen)
    for tokens in drafted:
        own = list(islice(left, len(tokens) + 1))
        accepted = next((i for i, token in enumerate(tokens) if token != own[i]), len(tokens))
        runs.append(own[: accepted + 1])
    return runs


def _reject(
    logits: torch.Tensor,
    drafted: Sequence[Sequence[int]],
    probabilities: torch.Tensor,
    params: Sequence[SamplingParams],
    draws: Sequence[random.Random],
    choose: Choose,
) -> torch.Tensor:
    """Choose a token for each row by rejection sampling (Leviathan et al., 2023, arXiv 2211.17192).

    A draft with probability p in the model and q in its proposal is accepted with probability min(1, p / q).
    Otherwise the token is drawn from the normalised max(0, p - q), in which the draft has no mass. The row
    after the last draft is drawn from p.

    Args:
        logits: See `verify`.
        drafted: The drafted tokens of each sequence.
        probabilities: See `Drafted`.
        params: R sampling parameters.
        draws: R sources of random numbers.
        choose: Chooses the tokens of greedy rows, and of sequences without drafts.

    Returns:
        [R] int64, the draft where it is accepted; -1 for a row whose largest logit is not finite.
    """
    device, pinned = logits.device, logits.is_cuda
    count = iter(range(len(probabilities)))
    places = [place for tokens in drafted for place in (*islice(count, len(tokens)), -1)]  # in all drafts
    has_drafts = [bool(tokens) for tokens in drafted for _ in range(len(tokens) + 1)]
    is_drawn = [own and param.temperature > 0 for own, param in zip(has_drafts, params, strict=True)]
    sampled = [row for row, own in enumerate(is_drawn) if own]
    others = [row for row, own in enumerate(is_drawn) if not own]  # as without drafts: alone as in a batch
    tokens = torch.zeros(len(logits), dtype=torch.int64, device=device)
    if others:
        index = sent(others, torch.int64, device, pin_memory=pinned)
        tokens[index] = choose(logits[index], [params[row] for row in others], [draws[row] for row in others])
    if not sampled:
        return tokens
    index = sent(sampled, torch.int64, device, pin_memory=pinned)
    rows, own_draws = logits[index], [draws[row] for row in sampled]
    _, weights = draw(rows, [params[row] for row in sampled], own_draws)
    p = weights.double() / weights.sum(-1, keepdim=True)
    numbers = sent(
        [(one.random(), one.random()) for one in own_draws], torch.float64, device, pin_memory=pinned
    )
    place = sent([places[row] for row in sampled], torch.int64, device, pin_memory=pinned)
    has_draft = place >= 0
    flat = sent([*chain(*drafted), 0], torch.int64, device, pin_memory=pinned)
    drafts = flat[place].unsqueeze(1)
    q = probabilities.to(p.dtype)[place.clamp(min=0)].where(has_draft.unsqueeze(1), 0.0)
    accepted = has_draft & _is_accepted(p.gather(1, drafts), q.gather(1, drafts), numbers[:, :1]).squeeze(1)
    rest = (p - q).clamp(min=0)
    mass = rest.sum(-1, keepdim=True)
    rest = rest.where(mass > 0, p)  # p and q are equal up to rounding
    drawn = pick((rest / rest.amax(-1, keepdim=True) * UNIT).long(), numbers[:, 1:])
    chosen = drafts.squeeze(1).where(accepted, drawn)
    tokens[index] = chosen.where(rows.amax(-1).isfinite(), -1)
    return tokens


def _is_accepted(p: torch.Tensor, q: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Whether drafts are accepted, with probability min(1, p / q)."""
    return numbers * q < p


__all__ = ["Choose", "verify"]
