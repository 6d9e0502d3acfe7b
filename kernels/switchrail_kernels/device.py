"""What the kernels must know of a device to choose the sizes of their tiles."""

from __future__ import annotations

import logging
from functools import cache

import torch

from switchrail_kernels.fitted import H200, Fitted, nearest

_log = logging.getLogger("switchrail_kernels")

_SMALL = frozenset({(8, 6), (8, 9), (12, 0), (12, 1)})
"""Compute capabilities with 99 KB of shared memory for a program; others from 8.0 on have 163 KB or more."""


@cache
def compute_capability(device: torch.device) -> tuple[int, int]:
    """That of a GPU; (0, 0) where the kernels are interpreted."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)


@cache
def has_large_shared_memory(device: torch.device) -> bool:
    """Whether a program may have 160 KB of shared memory, as on an A100, an H100 and their successors."""
    return compute_capability(device) not in _SMALL


@cache
def multiprocessors(device: torch.device) -> int:
    """The device's multiprocessors; as many as an H200 has where the kernels are interpreted."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


@cache
def fitted(device: torch.device) -> Fitted:
    """What plans go by on a device; as on an H200 where the kernels are interpreted."""
    capability = compute_capability(device)
    found = nearest(capability) if device.type == "cuda" else H200
    if device.type == "cuda" and found.capability != capability:
        _log.info(
            "switchrail_kernels was not timed on %s (%d.%d): its plans go by the times of an %s (%d.%d)",
            *(torch.cuda.get_device_name(device), *capability, found.device, *found.capability),
        )
    return found


__all__ = ["compute_capability", "fitted", "has_large_shared_memory", "multiprocessors"]
