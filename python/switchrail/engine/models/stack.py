"""Combines weights in one tensor, so that one matrix product serves several layers."""

from __future__ import annotations

import torch


@torch.no_grad()
def stack(*weights: torch.Tensor, multiple: int = 1) -> torch.Tensor:
    """Move weights into one tensor; the parameters become views of this tensor.

    Args:
        weights: Parameters [..., D] of one dtype, on one device.
        multiple: The number of rows is padded with zeros to a multiple of this.

    Returns:
        [rows of all weights plus padding, D].
    """
    size = weights[0].shape[-1]
    rows = [weight.numel() // size for weight in weights]
    count = sum(rows)
    whole = weights[0].new_zeros(count + -count % multiple, size)
    for weight, part in zip(weights, torch.split(whole[:count], rows), strict=True):
        weight.data = part.view(weight.shape).copy_(weight)
    return whole
