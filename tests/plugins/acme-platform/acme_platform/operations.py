"""Acme's own functions."""

from __future__ import annotations

import torch

calls = 0


def rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float, weight_offset: float) -> torch.Tensor:
    """As `switchrail.platforms.operations.RMSNorm` says."""
    global calls
    calls += 1
    scale = weight.float() + weight_offset
    return torch.nn.functional.rms_norm(x.float(), (x.shape[-1],), scale, eps).type_as(x)
