"""Small values on their way from the host to the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def sent(values: Sequence[Any], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor of values on the device; the host waits neither for the copy nor for what runs before it."""
    host = torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")
    return host.to(device, non_blocking=True)


__all__ = ["sent"]
