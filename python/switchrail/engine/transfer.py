"""Transfers small values from the host to the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def sent(
    values: Sequence[Any] | npt.NDArray[Any], dtype: torch.dtype, device: torch.device, *, pin_memory: bool
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


def transfer(
    arrays: Sequence[npt.NDArray[np.generic]], device: torch.device, pin_memory: bool
) -> list[torch.Tensor]:
    """Copy one-dimensional arrays to the device in one transfer, without waiting for the transfer."""
    starts = np.cumsum([0] + [-(-array.nbytes // 8) * 8 for array in arrays]).tolist()
    # torch's cache of pinned memory reuses a block only after the copy from it has finished
    host = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=pin_memory)
    raw = host.numpy()
    for start, array in zip(starts, arrays, strict=False):
        raw[start : start + array.nbytes] = array.view(np.uint8)
    there = host.to(device, non_blocking=True)
    return [
        there[start : start + array.nbytes].view(torch.from_numpy(array[:0]).dtype)
        for start, array in zip(starts, arrays, strict=False)
    ]
