"""Weights that lie behind one another, so that one product serves for several."""

from __future__ import annotations

import torch


@torch.no_grad()
def stack(*weights: torch.Tensor) -> torch.Tensor:
    """Moves weights into one tensor, whose views they become.

    Args:
        weights: Parameters, each [..., D], of one dtype, on one device.

    Returns:
        [rows of all, D].
    """
    size = weights[0].shape[-1]
    rows = [weight.numel() // size for weight in weights]
    whole = weights[0].new_empty(sum(rows), size)
    for weight, part in zip(weights, torch.split(whole, rows), strict=True):
        weight.data = part.view(weight.shape).copy_(weight)
    return whole


__all__ = ["stack"]
