"""What the kernels must know of a device to choose the sizes of their tiles."""

from __future__ import annotations

from functools import cache

import torch


@cache
def has_large_shared_memory(device: torch.device) -> bool:
    """Whether a program may have 160 KB of shared memory, as on an A100, an H100 and their successors."""
    if device.type != "cuda":
        return True
    limit: int = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    return limit >= 160 << 10


__all__ = ["has_large_shared_memory"]
