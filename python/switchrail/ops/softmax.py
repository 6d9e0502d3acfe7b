"""Softmax attention in plain torch with the log-sum-exp that lets parts of it be merged."""

from __future__ import annotations

import torch


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float,
    mask: torch.Tensor | None = None,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attends, all in q's dtype.

    Args:
        q: [..., R, D].
        k: [..., S, D].
        v: [..., S, V].
        scale: Factor of the products.
        mask: Broadcast to [..., R, S], True where a row sees a position; None: everywhere.
        soft_cap: c, where each scaled product x becomes c tanh(x / c).
        sinks: Broadcast to [..., R], logits that take part in each row's sum and have no value.

    Returns:
        [..., R, V], zeros where a row sees nothing, and the log-sum-exp [..., R], -inf there.
    """
    logits = (q * scale) @ k.mT
    if soft_cap is not None:
        logits.div_(soft_cap).tanh_().mul_(soft_cap)
    if mask is not None:
        logits.masked_fill_(~mask, -torch.inf)
    top = logits.amax(-1)
    if sinks is not None:
        top = torch.maximum(top, sinks)
    top = top.clamp_min(torch.finfo(top.dtype).min)
    weights = logits.sub_(top[..., None]).exp_()
    total = weights.sum(-1)
    if sinks is not None:
        total = total + (sinks - top).exp()
    out = (weights @ v) / total.clamp_min(torch.finfo(total.dtype).tiny)[..., None]
    return out, total.log() + top


def merge(
    out: torch.Tensor, lse: torch.Tensor, other_out: torch.Tensor, other_lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The attention over two sets of positions from that over each.

    Args:
        out: [..., V], over the first set.
        lse: [...], its log-sum-exp (natural log), -inf where it is empty.
        other_out: [..., V], over the second set.
        other_lse: [...], its log-sum-exp.

    Returns:
        Those over both sets together.
    """
    total = torch.logaddexp(lse, other_lse)
    least = total.clamp_min(torch.finfo(total.dtype).min)
    merged = out * (lse - least).exp()[..., None] + other_out * (other_lse - least).exp()[..., None]
    return merged, total


__all__ = ["attend", "merge"]
