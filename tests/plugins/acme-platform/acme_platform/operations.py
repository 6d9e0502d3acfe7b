"""Acme's own RMS norm."""

from __future__ import annotations

import torch

calls = 0


def rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float, weight_offset: float) -> torch.Tensor:
    """See `switchrail.platforms.operations.RMSNorm`."""
    global calls
    calls += 1
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * (weight_offset + weight.float())).type_as(x)
