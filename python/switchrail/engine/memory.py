"""The memory of an engine: the pools of its platform, with sizes from its options."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch

from switchrail.checks import is_number
from switchrail.engine.options import EngineOptions
from switchrail.engine.transfer import sent
from switchrail.errors import ConfigError, PlatformError
from switchrail.overrides import check_overrides
from switchrail.platforms import Platform
from switchrail.pools.free import FreeList
from switchrail.pools.kv import KVPool, LatentPool, MultiHeadPool
from switchrail.pools.pool import PagedPool
from switchrail.pools.shapes import KVKind, KVShape, LatentShape, Shape, StateShape, pages_of
from switchrail.pools.state import StatePool

FRACTION: Final = 0.85
"""The fraction of free memory to use if the memory that steps need is unknown."""

_TRIED_FRACTION: Final = 0.95
"""The fraction of free memory to use if a trial has measured the memory that steps need."""

_TABLE_ENTRY = 4
"""Bytes of an entry in the page table."""

KINDS: Final[Mapping[str, KVKind]] = {"attention": "mha", "mla": "mla"}
"""The kind of cache that each paged op has."""

_BASES: dict[KVKind, type] = {"mha": MultiHeadPool, "mla": LatentPool}

T = TypeVar("T", bound=type)


@dataclass(frozen=True, slots=True)
class Needs:
    """The memory of a model's pools.

    Attributes:
        page: Bytes of a page.
        slots: Bytes of all slots.
    """

    page: int
    slots: int


class PoolClasses:
    """A platform's classes for the pools of a model, or of some of its layers.

    Attributes:
        kv: The classes of the key-value pools, by kind.
        tokens: By kind, the shape of one token's memory in each layer.
        state: The class of the state pool.
        states: The shape of one sequence's memory, by (layer id, op).
    """

    def __init__(self, shapes: Mapping[tuple[int, str], Shape], platform: Platform) -> None:
        """Get the classes from the platform.

        Args:
            shapes: The shape of the memory of each (layer id, op).
            platform: The platform, which provides the pools.

        Raises:
            PlatformError: The platform returns an invalid pool class.
        """
        serving = platform.serving
        self.tokens: dict[KVKind, dict[int, Any]] = {}
        self.states: dict[tuple[int, str], StateShape] = {}
        for (layer, op), shape in shapes.items():
            if isinstance(shape, KVShape | LatentShape):
                self.tokens.setdefault(shape.kind, {})[layer] = shape
            else:
                self.states[layer, op] = shape
        self.kv: dict[KVKind, type[KVPool[Any]]] = {
            kind: _checked(serving.kv_pool_class(kind), _BASES[kind], platform, f"kv_pool_class({kind!r})")
            for kind in self.tokens
        }
        self.state = _checked(serving.state_pool_class(), StatePool, platform, "state_pool_class()")

    def page_bytes(self, page_size: int, dtype: torch.dtype) -> int:
        """Bytes of one page in all layers."""
        return sum(
            cls.page_bytes(self.tokens[kind].values(), page_size, dtype) for kind, cls in self.kv.items()
        )

    def slot_bytes(self, dtype: torch.dtype, state_dtype: torch.dtype) -> int:
        """Bytes of one slot in all layers."""
        return self.state.slot_bytes(self.states.values(), dtype, state_dtype)

    def needs(self, options: EngineOptions, *, dtype: torch.dtype, state_dtype: torch.dtype) -> Needs:
        """The memory of pools with these options."""
        return Needs(
            self.page_bytes(options.page_size, dtype),
            (options.max_sequences + 1) * self.slot_bytes(dtype, state_dtype),
        )


class Pools:
    """The memory of an engine, allocated once. Freed pages and slots are not cleared.

    Attributes:
        pages: Free pages of the key-value pools.
        slots: Free slots of the state pool.
        kv: The key-value pools, by kind of cache.
        state: The state pool.
        more: Other pools with the same pages, such as hidden states kept for drafts.
    """

    def __init__(
        self,
        shapes: Mapping[tuple[int, str], Shape],
        options: EngineOptions,
        *,
        working: int | None = None,
        beside: Needs | None = None,
        platform: Platform,
        max_length: int,
        dtype: torch.dtype,
        state_dtype: torch.dtype,
    ) -> None:
        """Determine the sizes of the pools, and allocate them.

        Args:
            shapes: The shape of the memory of each (layer id, op).
            options: The engine's options.
            working: Bytes that steps need in addition to the pools; None if unknown.
            beside: The memory of a draft's pools, which have equally many pages; None without such pools.
            platform: The platform, which provides the pools.
            max_length: Maximum tokens per sequence.
            dtype: The dtype of keys, values and convolution windows.
            state_dtype: The dtype of recurrent states.

        Raises:
            ConfigError: The state pool, the page table and the pages (at least two) don't fit, or `num_pages`
                is None and the platform does not report its memory.
            PlatformError: The platform returns an invalid pool class or invalid memory sizes.
        """
        classes = PoolClasses(shapes, platform)
        allocator = _checked(
            platform.serving.paged_allocator_class(), FreeList, platform, "paged_allocator_class()"
        )

        num_slots = options.max_sequences + 1
        own, other = classes.needs(options, dtype=dtype, state_dtype=state_dtype), beside or Needs(0, 0)
        num_pages = _count_pages(
            options,
            working=working,
            platform=platform,
            max_length=max_length,
            page=own.page + other.page,
            slots=own.slots + other.slots,
        )
        self._device = device = torch.device(platform.device)
        self._pinned = platform.hardware.pin_memory_available()
        self.pages = allocator(num_pages)
        self.slots = FreeList(num_slots)
        self.more: list[PagedPool] = []
        self.kv = {
            kind: cls(
                classes.tokens[kind],
                num_pages=num_pages,
                page_size=options.page_size,
                dtype=dtype,
                device=device,
            )
            for kind, cls in classes.kv.items()
        }
        self.state = classes.state(
            classes.states, num_slots=num_slots, dtype=dtype, state_dtype=state_dtype, device=device
        )

    @property
    def _paged(self) -> list[PagedPool]:
        return [*self.kv.values(), *self.more]

    def copy(self, pages: Sequence[tuple[int, int]], slots: Sequence[tuple[int, int]]) -> None:
        """Copy the first page or slot of each pair to the second. No target may also be a source."""
        for pools, pairs in ((self._paged, pages), ([self.state], slots)):
            if pairs:
                sources, targets = sent(pairs, torch.int64, self._device, pin_memory=self._pinned).unbind(1)
                for pool in pools:
                    pool.copy(sources, targets)

    def move_tokens(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copy tokens within the paged pools; see `PagedPool.move`."""
        for pool in self._paged:
            pool.move(sources, targets)

    def of(self, layer: int, op: str) -> tuple[torch.Tensor, ...]:
        """The memory of an op in a layer: the caches of a paged op; for other ops the pool of their states.

        Raises:
            UnknownLayerError: The pools have no memory for that layer.
        """
        if op in KINDS:
            return self.kv[KINDS[op]].caches(layer)
        return ((self.state.windows if op == "short_conv" else self.state.states)[layer],)

    def tensors(self) -> list[torch.Tensor]:
        """All tensors of the pools."""
        return [*(tensor for pool in self._paged for tensor in pool.tensors()), *self.state.tensors()]

    def nbytes_of(self, pages: int) -> float:
        """The size in bytes that the pools would have with a different number of pages."""
        tokens = sum(tensor.nbytes for pool in self._paged for tensor in pool.tensors())
        return self.nbytes - tokens + tokens / (self.pages.capacity + 1) * pages

    @property
    def nbytes(self) -> int:
        """The size of the pools in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors())


def _count_pages(
    options: EngineOptions,
    *,
    working: int | None,
    platform: Platform,
    max_length: int,
    page: int,
    slots: int,
) -> int:
    """The number of pages, including the reserved page 0.

    By default as many as fit, but not more than all sequences can use. `page` is the size of a page and
    `slots` the size of all slots, in bytes.
    """
    columns = pages_of(max_length, options.page_size)
    table = table_bytes(options, max_length)
    asked = options.num_pages
    total = _bytes(platform, "total_memory", least=1)
    if asked is None:
        used = memory_in_use(platform)
        if total is None:
            raise _unknown(platform)
        fraction = options.memory_fraction or (FRACTION if working is None else _TRIED_FRACTION)
        memory = (total - used) * fraction - (working or 0)
        given = f"{memory / 2**20:.0f} MiB ({fraction:.0%} of the free memory"
        given += ")" if working is None else f", less {working / 2**20:.0f} MiB that steps take)"
        free = memory - slots - table
        count = min(options.max_sequences * columns + 1, max(0, int(free // page)) if page else sys.maxsize)
    else:
        memory = math.inf if total is None else total
        given = f"{memory / 2**20:.0f} MiB (all memory)"
        count = asked
        free = memory - slots - table - count * page
    if free < 0 or count < 2:
        raise ConfigError(
            f"{given} can't hold the states of {options.max_sequences} sequences ({slots / 2**20:.0f} MiB), "
            f"their page table for {max_length} tokens each ({table / 2**20:.0f} MiB) and "
            f"{asked or 'two'} pages of {page} bytes; change max_sequences, max_length, page_size, num_pages "
            "or memory_fraction",
            memory=memory,
            slots=slots,
            table=table,
            page=page,
        )
    return count


def table_bytes(options: EngineOptions, max_length: int) -> int:
    """Bytes of the page table for sequences of up to `max_length` tokens."""
    return (options.max_sequences + 1) * pages_of(max_length, options.page_size) * _TABLE_ENTRY


def memory_in_use(platform: Platform, *, cached: bool = False) -> float:
    """Bytes of device memory in use, after waiting for all launched work.

    Args:
        platform: The platform.
        cached: Whether to include freed memory that is kept for reuse.

    Raises:
        ConfigError: The platform does not report its memory.
        PlatformError: The reported value is invalid.
    """
    platform.hardware.synchronize()
    if not cached:
        platform.hardware.empty_cache()
    used = _bytes(platform, "current_memory_usage", least=0)
    if used is None:
        raise _unknown(platform)
    return used


def _unknown(platform: Platform) -> ConfigError:
    return ConfigError(
        f"platform {platform.kind!r} doesn't say how much memory is free; give num_pages",
        problems={"num_pages": "found None"},
        valid={"num_pages": "an integer of at least 2"},
    )


def _bytes(platform: Platform, method: str, *, least: int) -> float | None:
    """The result in bytes of a method of the platform's `Hardware`; None if the platform doesn't know it."""
    found = getattr(platform.hardware, method)()
    if found is not None and not (is_number(found) and found >= least):
        raise PlatformError(
            f"platform {platform.kind!r} gives {found!r:.80} for {method}(); valid: bytes, at least {least}, "
            "or None if unknown",
            found=found,
        )
    return found  # type: ignore[no-any-return]


def _checked(found: T, base: type, platform: Platform, method: str) -> T:
    if not isinstance(found, type) or not issubclass(found, base):
        raise PlatformError(
            f"platform {platform.kind!r} gives {found!r} for {method}; valid: a class derived from "
            f"{base.__module__}.{base.__qualname__}",
            found=found,
        )
    problems = check_overrides(found, base)
    if problems:
        raise PlatformError(
            f"platform {platform.kind!r} gives a class for {method} that doesn't fit its base: "
            + "; ".join(problem.text for problem in problems),
            found=found,
            nearest=tuple(name for problem in problems for name in problem.nearest),
        )
    return found
