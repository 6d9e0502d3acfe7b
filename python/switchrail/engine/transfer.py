"""Transfers of small values from the host to the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def sent(
    values: Sequence[Any], dtype: torch.dtype, device: torch.device, *, pin_memory: bool
) -> torch.Tensor:
    """Copy values to a tensor on the device.

    Args:
        values: The values.
        dtype: The tensor's dtype.
        device: The tensor's device.
        pin_memory: Whether the device copies from pinned memory, so that the host doesn't wait.
    """
    host = torch.tensor(values, dtype=dtype, pin_memory=pin_memory)
    return host.to(device, non_blocking=True)


__all__ = ["sent"]
