"""Decides which drafted tokens a model accepts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch

from switchrail.params import SamplingParams

Choose = Callable[[torch.Tensor, Sequence[SamplingParams], Sequence[random.Random]], torch.Tensor]
"""See `switchrail.engine.sampling.choose`."""


def verify(
    logits: torch.Tensor,
    drafted: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
    draws: Sequence[random.Random],
    choose: Choose,
) -> list[list[int]]:
    """Choose tokens after verification, waiting for the device.

    A draft is accepted if the model chooses it too, with the same random number as without drafts. So neither
    greedy nor sampled tokens depend on drafts, and each sequence takes one random number per new token. A
    draft with probability p in the model is accepted with probability p, as in rejection sampling of a
    certain proposal.

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
    rows = [len(tokens) + 1 for tokens in drafted]
    before = [
        draw.getstate() if param.temperature > 0 else None for param, draw in zip(params, draws, strict=True)
    ]
    chosen: list[int] = choose(
        logits,
        [param for param, count in zip(params, rows, strict=True) for _ in range(count)],
        [draw for draw, count in zip(draws, rows, strict=True) for _ in range(count)],
    ).tolist()
    runs = []
    for tokens, count in zip(drafted, rows, strict=True):
        own, chosen = chosen[:count], chosen[count:]
        accepted = next((i for i, token in enumerate(tokens) if token != own[i]), len(tokens))
        runs.append(own[: accepted + 1])
    for draw, state, run in zip(draws, before, runs, strict=True):
        if state is not None:
            draw.setstate(state)
            for _ in run:
                draw.random()
    return runs


__all__ = ["Choose", "verify"]
