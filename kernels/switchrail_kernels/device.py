"""Device properties and measured constants, which determine tile sizes and plans."""

from __future__ import annotations

import logging
from functools import cache

import torch

from switchrail_kernels.fitted import H200, Fitted, nearest

_log = logging.getLogger("switchrail_kernels")

_SMALL = frozenset({(8, 6), (8, 9), (12, 0), (12, 1)})
"""Compute capabilities with 99 KB of shared memory per program; others from 8.0 on have at least 163 KB."""


@cache
def compute_capability(device: torch.device) -> tuple[int, int]:
    """The compute capability of a GPU; (0, 0) in Triton's interpreter."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)


@cache
def has_large_shared_memory(device: torch.device) -> bool:
    """Whether a program may use 160 KB of shared memory, as on an A100 or an H100."""
    return compute_capability(device) not in _SMALL


@cache
def multiprocessors(device: torch.device) -> int:
    """The device's number of multiprocessors; in Triton's interpreter, that of an H200."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


@cache
def fitted(device: torch.device) -> Fitted:
    """The measured constants for a device; in Triton's interpreter, those of an H200."""
    capability = compute_capability(device)
    found = nearest(capability) if device.type == "cuda" else H200
    if device.type == "cuda" and found.capability != capability:
        _log.info(
            "switchrail_kernels was not timed on %s (%d.%d): its plans use the times of an %s (%d.%d)",
            *(torch.cuda.get_device_name(device), *capability, found.device, *found.capability),
        )
    return found
