"""How many pages an engine gets."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from switchrail.engine.options import EngineOptions
from switchrail.engine.pools import Shape, page_bytes, slot_bytes
from switchrail.errors import ConfigError
from switchrail.platform import Platform

_HOST_FRACTION = 0.25
_DEVICE_FRACTION = 0.85


def pages_of(tokens: int, page_size: int) -> int:
    """Pages that hold so many tokens."""
    return -(-tokens // page_size)


def choose_num_pages(
    options: EngineOptions,
    shapes: Iterable[Shape],
    *,
    max_length: int,
    dtype: torch.dtype,
    state_dtype: torch.dtype,
    platform: Platform,
) -> int:
    """Pages, the reserved one included: as asked for, as could be needed, or as there is room for.

    Raises:
        ConfigError: There is no room for the state pools and one page.
    """
    if options.num_pages is not None:
        return options.num_pages
    shapes = list(shapes)
    needed = options.max_sequences * pages_of(max_length, options.page_size) + 1
    page = page_bytes(shapes, options.page_size, dtype)
    if not page:
        return needed
    fraction = options.memory_fraction or (_HOST_FRACTION if platform.kind == "cpu" else _DEVICE_FRACTION)
    free = _free_bytes(platform)
    slots = (options.max_sequences + 1) * slot_bytes(shapes, dtype, state_dtype)
    room = int((free * fraction - slots) // page)
    if room < 2:
        raise ConfigError(
            f"{free * fraction / 2**20:.0f} MiB ({fraction:.0%} of the memory) can't hold the states of "
            f"{options.max_sequences} sequences ({slots / 2**20:.0f} MiB) and two pages of {page} bytes; "
            "give max_sequences, page_size or memory_fraction another value",
            free=free,
            slots=slots,
            page=page,
        )
    return min(needed, room)


def _free_bytes(platform: Platform) -> int:
    """What is free on an accelerator; on a host, whose caches make room when they must, all."""
    return platform.total_memory if platform.kind == "cpu" else torch.cuda.mem_get_info(platform.device)[0]


__all__ = ["choose_num_pages", "pages_of"]
