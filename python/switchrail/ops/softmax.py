"""Softmax attention in plain torch, and the merging of partial results by their log-sum-exps."""

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
    """Compute attention in the dtype of q.

    Args:
        q: [..., R, D].
        k: [..., S, D].
        v: [..., S, V].
        scale: A factor on the products of queries and keys.
        mask: Broadcast to [..., R, S], True where a row attends to a position; None for all.
        soft_cap: c; each scaled product x is replaced by c tanh(x / c). None for no cap.
        sinks: Broadcast to [..., R], one more logit for each row, without a value.

    Returns:
        The results [..., R, V] and the log-sum-exps [..., R]. For a row that attends to nothing, the result
        is zeros, and without sinks the log-sum-exp is -inf.
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
    """Merge the results of attention over two sets of positions.

    Args:
        out: [..., V], the result over the first set.
        lse: [...], its log-sum-exp (natural log), -inf if the set is empty.
        other_out: [..., V], the result over the second set.
        other_lse: [...], its log-sum-exp.

    Returns:
        The attention over both sets together, and its log-sum-exp.
    """
    total = torch.logaddexp(lse, other_lse)
    least = total.clamp_min(torch.finfo(total.dtype).min)
    merged = out * (lse - least).exp()[..., None] + other_out * (other_lse - least).exp()[..., None]
    return merged, total
