"""Plans of batches for FlashInfer's wrappers of paged attention, and a pool of these wrappers."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from switchrail.ops.batch import PagedBatch, Phase
from switchrail.ops.contract import Contract
from switchrail.ops.pages import PagedBatchPlan, check_pages

from switchrail_kernels.tables import ranges, to_device

WORKSPACE = 128 << 20
"""Default size in bytes of the library's workspace for partial results."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The pages of the M nonempty sequences, for one page size.

    Attributes:
        starts: [M + 1] int32 on the host, the first entry of each sequence in `pages`, and the number of all
            entries.
        pages: int32 on the device, the pages of all sequences.
        last: [M] int32 on the host, the tokens in each sequence's last page.
    """

    starts: torch.Tensor
    pages: torch.Tensor
    last: torch.Tensor


class WrapperPlan(PagedBatchPlan):
    """The data that all layers of a step share, and the wrappers that were planned for the step.

    Empty sequences are left out. The library does not support sequences without keys. So padding sequences,
    which have rows but no keys, are planned as if their keys were in page 0, and their results are
    overwritten.
    """

    def __init__(self, contract: Contract, phase: Phase, batch: PagedBatch) -> None:
        super().__init__(contract, phase, batch)
        self._tables: dict[int, Tables] = {}
        self._planned: dict[Hashable, Any] = {}
        rows = np.asarray(batch.seqlens, dtype=np.int64)
        keys = np.asarray(batch.kv_seqlens, dtype=np.int64)
        self._present = np.flatnonzero(rows)
        self._is_padding = keys[self._present] == 0
        lengths = rows[self._present]
        keys = np.where(self._is_padding, lengths, keys[self._present])
        self.rows = _starts(lengths)
        """[M + 1] int32 on the host, the first row of each nonempty sequence, and the number of all rows."""
        self.keys = torch.from_numpy(keys.astype(np.int32))
        """[M] int32 on the host, each nonempty sequence's number of keys; for padding, its number of rows."""
        self.longest = int(lengths.max(initial=0))
        self.is_empty = bool(self._is_padding.all())
        """Whether no row attends to any key."""
        padding = np.repeat(self._is_padding, lengths).nonzero()[0]
        self._padding = to_device(padding, batch.page_table.device) if len(padding) else None

    def tables(self, page: int) -> Tables:
        """The tables for pages of `page` tokens, made at the first call with this size.

        Raises:
            ContractError: The page table is too narrow.
        """
        if page not in self._tables:
            check_pages(self._contract, self._batch, page)
            table = self._batch.page_table
            counts = -(-self.keys.numpy().astype(np.int64) // page)
            starts = _starts(counts)
            entries = np.repeat(self._present * table.shape[1], counts) + ranges(counts)
            unused = np.repeat(self._is_padding, counts)
            pages = table.flatten().index_select(0, to_device(np.where(unused, 0, entries), table.device))
            if unused.any():
                pages.masked_fill_(to_device(unused, table.device), 0)
            self._tables[page] = Tables(starts, pages, (self.keys - 1) % page + 1)
        return self._tables[page]

    def wrapper(self, wrappers: Wrappers, key: Hashable, plan: Callable[[Any], None]) -> Any:
        """The wrapper for layers of one shape. It is planned at the first call with the shape's key.

        Args:
            wrappers: The pool to take a wrapper from.
            key: Everything besides the batch that determines the library's plan.
            plan: Plans the wrapper.
        """
        if key not in self._planned:
            device = self._batch.page_table.device
            stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
            wrapper = wrappers.take((device, stream))
            plan(wrapper)
            self._planned[key] = wrapper
            wrappers.lend((device, stream), wrapper, self)
        return self._planned[key]

    def clear_padding(self, out: torch.Tensor, lse: torch.Tensor | None) -> None:
        """Overwrite the results of padding rows."""
        if self._padding is not None:
            out.index_fill_(0, self._padding, 0)
            if lse is not None:
                lse.index_fill_(0, self._padding, -math.inf)


@dataclass(slots=True)
class Wrappers:
    """A pool of wrappers of one class. Each wrapper holds one plan at a time.

    A plan's tables are copied to the device from pinned memory of the wrapper. So the wrapper is free for the
    next plan only after that copy.

    Attributes:
        make: Creates a wrapper on a workspace.
        size: Bytes of a workspace, which the wrappers of one device and stream share.
    """

    make: Callable[[torch.Tensor], Any]
    size: int = WORKSPACE
    _free: dict[Hashable, list[tuple[Any, torch.cuda.Event | None]]] = field(default_factory=dict)
    _workspaces: dict[Hashable, torch.Tensor] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, stream: tuple[torch.device, int]) -> Any:
        """Take a free wrapper for a device and stream, or create one."""
        with self._lock:
            free = self._free.setdefault(stream, [])
            number = next((n for n, (_, copied) in enumerate(free) if _is_done(copied)), None)
            if number is not None:
                return free.pop(number)[0]
            if stream not in self._workspaces:
                self._workspaces[stream] = torch.zeros(self.size, dtype=torch.uint8, device=stream[0])
            return self.make(self._workspaces[stream])

    def lend(self, stream: tuple[torch.device, int], wrapper: Any, plan: WrapperPlan) -> None:
        """Lend a wrapper to a plan. The wrapper returns to the pool when the plan is freed."""
        copied = None
        if stream[0].type == "cuda":
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(torch.cuda.current_stream(stream[0]))
        weakref.finalize(plan, self._return, stream, wrapper, copied).atexit = False

    def _return(self, stream: Hashable, wrapper: Any, copied: torch.cuda.Event | None) -> None:
        self._free[stream].append((wrapper, copied))


def _is_done(copied: torch.cuda.Event | None) -> bool:
    return copied is None or bool(copied.query())  # type: ignore[no-untyped-call]


def _starts(counts: np.ndarray) -> torch.Tensor:
    starts = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=starts[1:])
    return torch.from_numpy(starts)
