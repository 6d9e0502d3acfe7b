"""One token from each row of logits."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from switchrail.engine.transfer import sent
from switchrail.params import SamplingParams


def choose(
    logits: torch.Tensor, params: Sequence[SamplingParams], draws: Sequence[random.Random]
) -> torch.Tensor:
    """Chooses a token for each row, without waiting for the device.

    Args:
        logits: [R, vocabulary].
        params: How each row's token is chosen.
        draws: Each row's source of random numbers; exactly one number is taken from it where the row is
            sampled, so a request's draws depend on nothing but its seed.

    Returns:
        [R] int64 token ids; -1 where a row's logits are not finite at the top, so that nothing can be chosen.
    """
    best, tokens = logits.max(dim=-1)
    rows = [row for row, param in enumerate(params) if param.temperature > 0]
    if rows:
        index = sent(rows, torch.int64, logits.device, pin_memory=logits.is_cuda)
        tokens[index] = _draw(
            logits[index].float(), [params[row] for row in rows], [draws[row].random() for row in rows]
        )
    return tokens.where(best.isfinite(), -1)


def _draw(logits: torch.Tensor, params: Sequence[SamplingParams], uniform: Sequence[float]) -> torch.Tensor:
    """Draws by inverting the distribution function of the filtered, descending probabilities.

    Each filter keeps a beginning of the descending order, so the filters together keep the shortest of these.

    Args:
        logits: [R, vocabulary] float32.
        params: R parameters with a temperature above 0.
        uniform: R numbers in [0, 1).

    Returns:
        [R] int64 token ids.
    """
    size = logits.shape[-1]
    columns = [
        # a subnormal temperature would divide 0 by 0
        (max(p.temperature, 1e-30), min(p.top_k or size, size), p.top_p, p.min_p, u)
        for p, u in zip(params, uniform, strict=True)
    ]
    values = sent(columns, torch.float32, logits.device, pin_memory=logits.is_cuda)
    temperature, top_k, top_p, min_p, u = values.unsqueeze(1).unbind(-1)
    ordered, tokens = logits.sort(dim=-1, descending=True, stable=True)
    scores = (ordered - ordered[:, :1]) / temperature
    rank = torch.arange(size, device=logits.device)
    probabilities = scores.masked_fill(rank >= top_k, float("-inf")).softmax(-1)
    mass = probabilities.cumsum(-1)
    likely = (mass - probabilities < top_p) | (top_p >= 1)
    kept = likely & (probabilities > 0) & (probabilities >= min_p * probabilities[:, :1]) & (rank < top_k)
    last = kept.sum(-1, keepdim=True).clamp(min=1) - 1
    chosen = torch.searchsorted(mass, u * mass.gather(-1, last), right=True).minimum(last)
    return tokens.gather(-1, chosen).squeeze(-1)
