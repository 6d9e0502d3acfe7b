"""Plans of attention: how rows and keys are split over programs, and the memory for partial results."""

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
"""Maximum pieces of a decode's cache."""

SPARE = 4
"""With bounds, caches are split for this many times the usual number of programs, since most may be short."""

_BLOCK = 32
"""If a cache is split, the number of keys per piece is a multiple of this."""

WIDEST = 2**30
"""Larger than any cache. Larger windows are reduced to this value, so that they fit in 32 bits."""


@dataclass(frozen=True, slots=True)
class CacheSplit:
    """How a decode's caches are split, and memory for the partial results.

    Layers with the same `Pieces.key` share the memory, since they run one after another.

    Attributes:
        pieces: Maximum pieces per sequence.
        least: Minimum keys per piece.
        tensors: [N * pieces, H, D] float32, the partial results, and [N * pieces, H] float32, their
            log-sum-exps. Empty if nothing is split.
    """

    pieces: int
    least: int
    tensors: tuple[torch.Tensor, ...]

    @classmethod
    def of(cls, pieces: int, least: int, q: torch.Tensor) -> CacheSplit:
        """Allocate memory for `pieces` pieces per sequence."""
        if pieces == 1:
            return cls(pieces, least, ())
        sequences, heads, head_size = q.shape
        parts = q.new_empty((sequences * pieces, heads, head_size), dtype=torch.float32)
        return cls(pieces, least, (parts, parts.new_empty(parts.shape[:2])))


class Pieces(DecodePlan[AttentionCall, CacheSplit]):
    """The plan of a decode."""

    contract = CONTRACT

    @staticmethod
    def key(call: AttentionCall) -> tuple[Any, ...]:
        """The shapes of the caches and queries, and the window."""
        layer = call[0]
        return layer.k_cache.shape, call[1].shape, layer.window

    def decide(self, call: AttentionCall, programs: int) -> CacheSplit:
        """Allocate memory for the best number of pieces."""
        layer, q, _, _ = call
        return CacheSplit.of(*self._choose(programs, layer.window, q.device), q)

    def _choose(self, each: int, window: int | None, device: torch.device) -> tuple[int, int]:
        """Choose the maximum number of pieces per cache, and the minimum number of keys per piece.

        All programs should run at once or, if there are too many sequences for that, in full waves. With
        bounds, most caches may be short, so the minimum is `Caches.piece`. `each` is the number of programs
        per piece.
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
    """The plan of a prefill or a verification.

    Attributes:
        works: The results of `work`, by its arguments.
    """

    def __init__(self, batch: PagedBatch) -> None:
        super().__init__(batch)
        self.works: dict[tuple[int, int, int, int, int | None], Work] = {}

    def work(self, tokens: int, group: int, kv_heads: int, page: int, window: int | None) -> Work:
        """The programs for these arguments, made at the first call with them.

        A sequence's split depends only on its own lengths, so its result does not depend on its neighbours.

        Args:
            tokens: Maximum tokens per tile.
            group: Query heads per key-value head.
            kv_heads: Key-value heads.
            page: Page size in tokens.
            window: Maximum positions a row attends to; None for no limit.
        """
        key = (tokens, group, kv_heads, page, window)
        if key not in self.works:
            check_pages(CONTRACT, self.batch, page)
            self.works[key] = self._make_work(*key)
        return self.works[key]

    def _make_work(self, tokens: int, group: int, kv_heads: int, page: int, window: int | None) -> Work:
        lengths = np.asarray(self.batch.seqlens, dtype=np.int64)
        past = np.asarray(self.batch.kv_seqlens, dtype=np.int64) - lengths
        tiles = split_rows(self.batch.seqlens, tokens)
        sequence, rows = tiles[:, 0], tiles[:, 3].astype(np.int64)
        keys = np.maximum(past[sequence] + tiles[:, 1] + rows, 0)
        if window is not None:
            keys = np.minimum(keys, window + rows)
        programs = -(-lengths // tokens)[sequence] * kv_heads
        # Minimum keys per piece. With `4 * group * rows` keys, a piece's 16-bit keys and values have four
        # times as many bytes as its float32 partial results.
        caches = fitted(self.batch.cu_seqlens.device).caches
        length = np.maximum(caches.piece, 4 * group * rows)
        pieces = np.maximum(np.minimum(caches.programs // programs, -(-keys // length)), 1)
        return Work.of(tiles, keys, pieces, self.batch.cu_seqlens.device)
