"""What all layers of a step share in attention: how rows and keys are cut, and room for the parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from switchrail.ops.attention.contract import CONTRACT, AttentionCall
from switchrail.ops.batch import PagedBatch
from switchrail.ops.pages import check_pages

from switchrail_kernels.decode import DecodePlan
from switchrail_kernels.device import fitted, multiprocessors
from switchrail_kernels.paged import PagedPlan
from switchrail_kernels.tables import split_rows
from switchrail_kernels.tiles import Work

MOST = 64
"""Pieces of a decode's cache at most."""

SPARE = 4
"""How many times as many programs there may be within bounds: where most caches are short, others are cut."""

_BLOCK = 32
"""What the keys of a piece are a multiple of, where there are several."""

WIDEST = 2**30
"""Wider than any cache: what a wider window counts as, so that 32 bits hold it."""


@dataclass(frozen=True, slots=True)
class Room:
    """Room for what comes of the pieces of a decode, shared by layers, which run one after another.

    Attributes:
        pieces: The most pieces of a sequence.
        least: The keys of a piece at least.
        tensors: [slots, H, D] float32, what comes of each; [slots, H] float32, its log-sum-exp. Empty where
            nothing is cut.
    """

    pieces: int
    least: int
    tensors: tuple[torch.Tensor, ...]

    @classmethod
    def of(cls, pieces: int, least: int, q: torch.Tensor) -> Room:
        """Room for as many pieces of each sequence."""
        if pieces == 1:
            return cls(pieces, least, ())
        sequences, heads, head_size = q.shape
        parts = q.new_empty((sequences * pieces, heads, head_size), dtype=torch.float32)
        return cls(pieces, least, (parts, parts.new_empty(parts.shape[:2])))


class Pieces(DecodePlan[AttentionCall, Room]):
    """How the caches of a decode are cut."""

    contract = CONTRACT

    @staticmethod
    def key(call: AttentionCall) -> tuple[Any, ...]:
        """The shapes of the caches and queries, and the window."""
        layer = call[0]
        return layer.k_cache.shape, call[1].shape, layer.window

    def decide(self, call: AttentionCall, programs: int) -> Room:
        """Room for as many pieces as are best."""
        layer, q, _, _ = call
        return Room.of(*self._cut(programs, layer.window, q.device), q)

    def _cut(self, each: int, window: int | None, device: torch.device) -> tuple[int, int]:
        """The pieces of the longest cache and the keys of a piece, so that all programs run at once.

        Where there are more sequences than that, so that rounds of programs are full. Within bounds most
        caches may be short, and a piece may have as few keys as pays. `each` is the programs of a piece.
        """
        caches = fitted(device).caches
        most = MOST if window is None else min(MOST, window // caches.piece + 2)
        keys = self.lengths
        if window is not None:
            keys = tuple(min(n, window) for n in keys)
        longest = max(keys, default=0)
        programs = max(1, caches.resident * multiprocessors(device) // each)
        if self.bounds is not None:
            pieces = min(-(-SPARE * programs // len(keys)), -(-longest // caches.piece), most)
            return max(1, pieces), caches.piece
        programs *= len(keys) // programs + 1
        length = max(caches.piece, -(-sum(keys) // (programs - len(keys))))
        pieces = max(1, min(-(-longest // length), most))
        return pieces, max(caches.piece, -(-longest // (pieces * _BLOCK)) * _BLOCK)


class Tiles(PagedPlan):
    """The tiles of a prefill or a verification.

    Attributes:
        works: By what a layer asks for.
    """

    def __init__(self, batch: PagedBatch) -> None:
        super().__init__(batch)
        self.works: dict[tuple[int, int, int, int, int | None], Work] = {}

    def work(self, tokens: int, group: int, kv_heads: int, page: int, window: int | None) -> Work:
        """The programs, made at the first call.

        How a sequence is cut depends on its own lengths alone, so that its result does not depend on its
        neighbours.

        Args:
            tokens: Tokens in a tile at most.
            group: Query heads that share a key-value head.
            kv_heads: Key-value heads.
            page: Tokens a page.
            window: How many positions a row sees at most; None: all up to its own.
        """
        key = (tokens, group, kv_heads, page, window)
        if key not in self.works:
            check_pages(CONTRACT, self.batch, page)
            self.works[key] = self._cut(*key)
        return self.works[key]

    def _cut(self, tokens: int, group: int, kv_heads: int, page: int, window: int | None) -> Work:
        lengths = np.asarray(self.batch.seqlens, dtype=np.int64)
        past = np.asarray(self.batch.kv_seqlens, dtype=np.int64) - lengths
        tiles = split_rows(self.batch.seqlens, tokens)
        sequence, rows = tiles[:, 0], tiles[:, 3].astype(np.int64)
        keys = np.maximum(past[sequence] + tiles[:, 1] + rows, 0)
        if window is not None:
            keys = np.minimum(keys, window + rows)
        programs = -(-lengths // tokens)[sequence] * kv_heads
        # A part in float32 has as many bytes as its keys and values have where its rows are as many.
        caches = fitted(self.batch.cu_seqlens.device).caches
        length = np.maximum(caches.piece, 4 * group * rows)
        pieces = np.maximum(np.minimum(caches.programs // programs, -(-keys // length)), 1)
        return Work.of(tiles, keys, pieces, self.batch.cu_seqlens.device)


__all__ = ["WIDEST", "Pieces", "Room", "Tiles"]
