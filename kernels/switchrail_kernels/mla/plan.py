"""What all layers of a step share: how the rows and keys of a batch are cut, and room for the parts."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from switchrail.ops.batch import PagedBatch
from switchrail.ops.mla.contract import CONTRACT
from switchrail.ops.pages import check_pages

from switchrail_kernels.device import multiprocessors
from switchrail_kernels.tables import split_rows, to_device

MOST = 64
"""Pieces of a cache at most."""

_LEAST = np.array([64 * 2**k * part // 2 for k in range(12) for part in (2, 3)])
"""Lengths of a piece to choose from, in keys."""

_START = 192
"""What a program takes before and after its keys, in keys."""

_MERGE = 256
"""What it takes to merge pieces, in keys."""

_UNKNOWN = 8192
"""What is taken for the length of a cache while a stream is captured, when a replay may find any."""


@dataclass(frozen=True, slots=True)
class Room:
    """Room for what comes of the pieces, shared by layers, which run one after another.

    Attributes:
        parts: [slots, H, R] float32.
        weights: [slots, H] float32, the log-sum-exp of each in powers of 2.
    """

    parts: torch.Tensor
    weights: torch.Tensor

    @classmethod
    def of(cls, slots: int, heads: int, latent_size: int, device: torch.device) -> Room:
        """Room for as many slots."""
        parts = torch.empty((slots, heads, latent_size), dtype=torch.float32, device=device)
        return cls(parts, parts.new_empty((slots, heads)))


@dataclass(frozen=True, slots=True)
class Cut:
    """How the keys are cut.

    Attributes:
        least: Keys of a piece at least.
        most: Pieces of a sequence at most; 1: nothing is cut.
    """

    least: int
    most: int

    @classmethod
    def of(cls, keys: np.ndarray, programs: int, device: torch.device) -> Cut:
        """Finds about the fastest.

        Args:
            keys: How many keys each tile sees, more than none.
            programs: Programs a tile and piece.
            device: Where they run.
        """
        pieces = np.clip(-(-keys // _LEAST[:, None]), 1, MOST)
        length = keys / pieces + _START
        waves = np.ceil(pieces.sum(1) * programs / multiprocessors(device))
        longest = length.max(1)
        cost = waves * length.mean(1) + longest - length.mean(1) + _MERGE * (pieces.max(1) > 1)
        best = int(cost.argmin())
        return cls(int(_LEAST[best]), int(pieces[best].max()))


@dataclass(frozen=True, slots=True)
class Pieces:
    """How the caches of a decode are cut.

    Attributes:
        batch: The step's batch.
        cuts: By page and programs a sequence and piece.
        rooms: By slots, number of heads and latent size.
    """

    batch: PagedBatch
    cuts: dict[tuple[int, int], Cut] = field(default_factory=dict)
    rooms: dict[tuple[int, int, int], Room] = field(default_factory=dict)

    def cut(self, page: int, programs: int) -> Cut:
        """How a layer's keys are cut, decided at the first call."""
        key = (page, programs)
        if key not in self.cuts:
            check_pages(CONTRACT, self.batch, page)
            keys = np.asarray(self.batch.kv_seqlens, dtype=np.int64)
            if _is_captured(self.batch):
                keys[:] = _UNKNOWN
            self.cuts[key] = Cut.of(np.maximum(keys, 1), programs, self.batch.cu_seqlens.device)
        return self.cuts[key]

    def room(self, slots: int, heads: int, latent_size: int) -> Room:
        """Room for a layer, made at the first call."""
        key = (slots, heads, latent_size)
        if key not in self.rooms:
            self.rooms[key] = Room.of(*key, self.batch.cu_seqlens.device)
        return self.rooms[key]


@dataclass(frozen=True, slots=True)
class Work:
    """The programs of a prefill or a verification.

    Attributes:
        items: [programs, 8] int32, those with the most keys first: sequence, first row within it, first
            packed row, number of rows, piece, number of pieces, first slot of the parts, nothing.
        rows: [rows that are merged, 4] int32: packed row, slot of its first part, slots from one part to the
            next, number of parts.
        slots: Slots of parts.
        rooms: By number of heads and latent size.
    """

    items: torch.Tensor
    rows: torch.Tensor
    slots: int
    rooms: dict[tuple[int, int], Room] = field(default_factory=dict)

    def room(self, heads: int, latent_size: int) -> Room:
        """Room for a layer, made at the first call."""
        key = (heads, latent_size)
        if key not in self.rooms:
            self.rooms[key] = Room.of(self.slots, *key, self.items.device)
        return self.rooms[key]


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles of a prefill or a verification.

    Attributes:
        batch: The step's batch.
        works: By what a layer asks for.
    """

    batch: PagedBatch
    works: dict[tuple[int, int, int], Work] = field(default_factory=dict)

    def work(self, tokens: int, programs: int, page: int) -> Work:
        """The programs, made at the first call.

        Args:
            tokens: Tokens in a tile at most.
            programs: Programs a tile and piece.
            page: Tokens a page.
        """
        key = (tokens, programs, page)
        if key not in self.works:
            check_pages(CONTRACT, self.batch, page)
            self.works[key] = self._work(tokens, programs)
        return self.works[key]

    def _work(self, tokens: int, programs: int) -> Work:
        device = self.batch.cu_seqlens.device
        lengths = np.asarray(self.batch.seqlens, dtype=np.int64)
        past = np.asarray(self.batch.kv_seqlens, dtype=np.int64) - lengths
        if _is_captured(self.batch):
            past[:] = _UNKNOWN
        tiles = split_rows(self.batch.seqlens, tokens)
        rows = tiles[:, 3]
        keys = np.maximum(past[tiles[:, 0]] + tiles[:, 1] + rows, 1)
        cut = Cut.of(keys, programs, device)
        pieces = np.clip(-(-keys // cut.least), 1, cut.most)
        slots = np.where(pieces > 1, pieces * rows, 0)
        slot = np.cumsum(slots) - slots

        tile = np.repeat(np.arange(len(tiles)), pieces)
        items = np.zeros((len(tile), 8), dtype=np.int32)
        items[:, :4] = tiles[tile]
        items[:, 4] = np.arange(len(tile)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        items[:, 5] = pieces[tile]
        items[:, 6] = slot[tile]
        items = items[np.argsort(-(keys // pieces)[tile], kind="stable")]

        parted = np.flatnonzero(pieces > 1)
        tile = np.repeat(parted, rows[parted])
        row = np.arange(len(tile)) - np.repeat(np.cumsum(rows[parted]) - rows[parted], rows[parted])
        merged = np.empty((len(tile), 4), dtype=np.int32)
        merged[:, 0] = tiles[tile, 2] + row
        merged[:, 1] = slot[tile] + row
        merged[:, 2] = rows[tile]
        merged[:, 3] = pieces[tile]
        return Work(to_device(items, device), to_device(merged, device), int(slots.sum()))


def _is_captured(batch: PagedBatch) -> bool:
    return batch.cu_seqlens.device.type == "cuda" and torch.cuda.is_current_stream_capturing()


__all__ = ["Cut", "Pieces", "Room", "Tiles", "Work"]
