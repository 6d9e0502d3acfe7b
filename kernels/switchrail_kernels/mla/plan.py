"""Plans of latent attention: how rows and keys are split, and which sequences' latents are expanded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from switchrail.ops.batch import PagedBatch
from switchrail.ops.mla.contract import CONTRACT, MlaCall
from switchrail.ops.pages import check_pages

from switchrail_kernels.decode import DecodePlan
from switchrail_kernels.device import fitted, multiprocessors
from switchrail_kernels.mla.project import SELECTED_ROWS
from switchrail_kernels.paged import PagedPlan
from switchrail_kernels.tables import all_to_device, split_rows, to_device
from switchrail_kernels.tiles import Work

SPAN = 128
"""Maximum number of keys that a program expands."""

TWO_PARTS = 128
"""Maximum latent size for which absorbed queries are kept as the sum of two 16-bit parts, except in decode.

Rounding to a single bfloat16 part changes logits by about 2^-9 of their size. For large logits, this changes
weights by several percent. The two parts of larger queries would not fit in registers.
"""

FEWEST_NARROW = 128
"""Minimum number of rows of a sequence that is expanded, for latent sizes up to `TWO_PARTS`.

At these sizes, logits of absorbed queries in two parts are more exact than logits of expanded keys.
"""

LEAST = 128
"""Approximate minimum of keys per piece."""

LONG = 16384
"""Maximum keys per piece, unless the number of pieces is at its limit."""

MOST = 64
"""Maximum pieces of a cache."""

_USUAL = 8192
"""The cache length for which the number of pieces is optimized."""


@dataclass(frozen=True, slots=True)
class CacheSplit:
    """How caches are split into pieces.

    `base` does not depend on cache lengths, and a cache's number of pieces depends only on `base` and on the
    cache's own length. So a replayed graph splits caches as a separate call would.

    Attributes:
        base: The number of pieces of a cache of `base * LEAST` to `base * LONG` keys.
        most: The number of pieces of the longest cache; 1 if no cache is split.
    """

    base: int
    most: int

    @classmethod
    def of(cls, tiles: int, programs: int, longest: int, device: torch.device) -> CacheSplit:
        """Find an approximately optimal split.

        Args:
            tiles: The number of tiles of rows.
            programs: Programs for each piece of a tile's keys.
            longest: The number of keys of the longest cache.
            device: The device of the programs.
        """
        counts = np.arange(1, MOST + 1)
        waves = -(-tiles * programs * counts // multiprocessors(device))
        costs = fitted(device).latents
        cost = waves * (_USUAL / counts + costs.start) + costs.merge * (counts > 1)
        base = int(counts[cost.argmin()])
        return cls(base, int(cls(base, MOST).pieces(np.array([longest]))[0]))

    def pieces(self, keys: np.ndarray) -> np.ndarray:
        """The number of pieces of each cache, computed as in the kernels."""
        pieces: np.ndarray = self.base * -(-keys // (self.base * LONG))
        pieces = np.minimum(-(-keys // LEAST), pieces).clip(1, self.most)
        return pieces


class Pieces(DecodePlan[MlaCall, CacheSplit]):
    """The plan of a decode."""

    contract = CONTRACT

    @staticmethod
    def key(call: MlaCall) -> tuple[Any, ...]:
        """The cache's shape, the shape of `q_rope`, and the cache's dtype."""
        cache = call[0].kv_cache
        return cache.shape, call[2].shape, cache.dtype

    def decide(self, call: MlaCall, programs: int) -> CacheSplit:
        """Find an approximately optimal split."""
        longest = max(self.lengths, default=0)
        return CacheSplit.of(len(self.lengths), programs, longest, call.layer.kv_cache.device)


@dataclass(frozen=True, slots=True)
class Layer:
    """The sizes that determine whether keys and values are expanded.

    Attributes:
        heads: H, the number of heads.
        plain: D, the size of the unrotated part of keys.
        rotated: E, the size of the rotated part.
        latent: R, the size of a latent.
        value: V, the size of values.
        tile: Maximum rows of a program that attends to expanded keys and values.
    """

    heads: int
    plain: int
    rotated: int
    latent: int
    value: int
    tile: int

    def expands(self, batch: PagedBatch) -> np.ndarray:
        """[N] bool: whether each sequence is estimated to be faster with expansion than without.

        Costs are in multiplications per head, on all multiprocessors. Programs that attend to expanded keys
        and values take all keys of a round, not pieces of them. So a few tiles leave multiprocessors idle.
        """
        rows = np.asarray(batch.seqlens, dtype=np.float64)
        keys = np.asarray(batch.kv_seqlens, dtype=np.float64)
        device = batch.cu_seqlens.device
        costs = fitted(device).latents
        can = (keys > 0) & (rows >= (costs.fewest if self.latent > TWO_PARTS else FEWEST_NARROW))
        if not can.any():
            return can
        live = np.count_nonzero(rows * keys)
        seen = keys - (rows - 1) / 2
        absorbed = (2 * self.latent + self.rotated) * rows * (seen + costs.row) + costs.call / (
            self.heads * live
        )
        made = costs.make * self.latent * (self.plain + self.value) * np.ceil(keys / SPAN) * SPAN
        tiles = np.ceil(rows / self.tile)
        seen = keys - np.maximum(rows - self.tile, 0) / 2
        row = costs.attend * (self.plain + self.rotated + self.value)
        attended = row * tiles * self.tile * (seen + costs.tile)
        some = tiles[can & (made + attended < absorbed)].sum()
        idle = max(1.0, multiprocessors(device) / (self.heads * max(some, 1.0)))
        gains: np.ndarray = can & (made + attended * idle < absorbed)
        return gains


@dataclass(frozen=True, slots=True)
class Rest:
    """The rows of sequences that are not expanded.

    Attributes:
        rows: The number of rows.
        selection: The rows, in the form of the argument `selection` of `project`.
    """

    rows: int
    selection: torch.Tensor


@dataclass(frozen=True, slots=True)
class Round:
    """The keys that are expanded at once, and the rows that attend to some of these keys.

    Attributes:
        spans: [spans, 4] int32, at most `SPAN` keys of one sequence each. Columns: sequence; the span's first
            key within the sequence, and among the keys of the round; number of keys.
        items: [tiles, 8] int32, the tile with the most keys first. Columns: first packed row; number of rows;
            index of the sequence's first key in this round among all keys of the round; number of keys from
            that key on, in this and later rounds, visible to the first row (0 or less for none); number of
            keys of this round visible to the last row; 1 if this is the sequence's first round; 1 if the
            rows see no keys of later rounds; unused.
    """

    spans: torch.Tensor
    items: torch.Tensor


@dataclass(frozen=True, slots=True)
class Expansion:
    """The sequences whose keys and values are expanded from the latents.

    Attributes:
        rounds: The rounds, in order.
        keys: The largest number of keys of a round.
        carried: Whether the keys of some sequence take several rounds, so that results carry over.
    """

    rounds: tuple[Round, ...]
    keys: int
    carried: bool


class Tiles(PagedPlan):
    """The plan of a prefill or a verification.

    Attributes:
        works: The results of `work`, by its arguments.
        expanded: By layer, [N] bool, whether each sequence is expanded.
        rests: By layer, the rows of the sequences that are not expanded.
        expansions: The results of `expansion`, by its arguments.
        ragged: Whether sequences may be expanded.
        chunked: Whether sequences with a cached prefix may be expanded, too.
    """

    ragged = chunked = True

    def __init__(self, batch: PagedBatch) -> None:
        super().__init__(batch)
        self.works: dict[tuple[int, int, int, Layer | None], Work] = {}
        self.expanded: dict[Layer, np.ndarray] = {}
        self.rests: dict[Layer, Rest] = {}
        self.expansions: dict[tuple[Layer, int, int], Expansion | None] = {}

    def work(self, tokens: int, programs: int, page: int, rest_of: Layer | None) -> Work:
        """The programs that attend to latents, determined at the first call with these arguments.

        Args:
            tokens: Maximum tokens per tile.
            programs: Programs for each piece of a tile's keys.
            page: Page size in tokens.
            rest_of: If given, include only sequences that are not expanded in this layer, with their rows
                packed without gaps. None includes all sequences.
        """
        key = (tokens, programs, page, rest_of)
        if key not in self.works:
            check_pages(CONTRACT, self.batch, page)
            self.works[key] = self._work(tokens, programs, rest_of)
        return self.works[key]

    def rest(self, layer: Layer) -> Rest:
        """The rows of sequences that are not expanded."""
        if layer not in self.rests:
            tiles = split_rows(self.batch.seqlens, SELECTED_ROWS)
            tiles = tiles[~self._expands(layer)[tiles[:, 0]]]
            table = np.zeros_like(tiles)
            table[:, 0] = tiles[:, 2]
            table[:, 1] = np.cumsum(tiles[:, 3]) - tiles[:, 3]
            table[:, 2] = tiles[:, 3]
            selection = to_device(table, self.batch.cu_seqlens.device)
            self.rests[layer] = Rest(int(tiles[:, 3].sum()), selection)
        return self.rests[layer]

    def expansion(self, layer: Layer, capacity: int, page: int) -> Expansion | None:
        """The rounds of expansion, determined at the first call with these arguments; None if there are none.

        Args:
            layer: The layer's sizes.
            capacity: Maximum keys expanded at once.
            page: Page size in tokens.
        """
        key = (layer, capacity, page)
        if key not in self.expansions:
            check_pages(CONTRACT, self.batch, page)
            self.expansions[key] = self._expansion(layer, capacity)
        return self.expansions[key]

    def _expands(self, layer: Layer) -> np.ndarray:
        if layer not in self.expanded:
            can = np.full(len(self.batch.seqlens), self.ragged)
            if not self.chunked:
                can &= np.asarray(self.batch.seqlens) == np.asarray(self.batch.kv_seqlens)
            self.expanded[layer] = can & layer.expands(self.batch)
        return self.expanded[layer]

    def _work(self, tokens: int, programs: int, rest_of: Layer | None) -> Work:
        device = self.batch.cu_seqlens.device
        lengths = np.asarray(self.batch.seqlens, dtype=np.int64)
        past = np.asarray(self.batch.kv_seqlens, dtype=np.int64) - lengths
        tiles = split_rows(self.batch.seqlens, tokens)
        if rest_of is not None:
            tiles = tiles[~self._expands(rest_of)[tiles[:, 0]]]
        rows = tiles[:, 3]
        keys = np.maximum(past[tiles[:, 0]] + tiles[:, 1] + rows, 1)
        split = CacheSplit.of(len(tiles), programs, int(keys.max(initial=1)), device)
        pieces = split.pieces(keys)
        at = None if rest_of is None else np.cumsum(rows) - rows
        return Work.of(tiles, keys, pieces, device, at, split.base)

    def _expansion(self, layer: Layer, capacity: int) -> Expansion | None:
        batch = self.batch
        device = batch.cu_seqlens.device
        tiles = split_rows(batch.seqlens, layer.tile)
        rounds: list[tuple[list[np.ndarray], list[np.ndarray]]] = []
        used = capacity
        carried = False
        most = 0
        for n in np.flatnonzero(self._expands(layer)).tolist():
            length, keys = batch.seqlens[n], batch.kv_seqlens[n]
            own = tiles[tiles[:, 0] == n]
            first = 0
            while first < keys:
                if used == capacity:
                    rounds.append(([], []))
                    used = 0
                count = min(keys - first, capacity - used)
                spans, items = rounds[-1]
                span = split_rows((count,), SPAN)
                spans.append(np.stack([span[:, 0] + n, span[:, 1] + first, span[:, 1] + used, span[:, 3]], 1))
                seen = keys - length + own[:, 1] + 1 - first
                last = seen + own[:, 3] - 1
                item = np.zeros((len(own), 8), dtype=np.int32)
                item[:, 0] = own[:, 2]
                item[:, 1] = own[:, 3]
                item[:, 2] = used
                item[:, 3] = seen
                item[:, 4] = np.minimum(last, count)
                item[:, 5] = first == 0
                item[:, 6] = last <= count
                items.append(item[last > 0] if first else item)
                used += count
                first += count
                most = max(most, used)
                carried |= first < keys
        if not rounds:
            return None
        tables = []
        for spans, items in rounds:
            table = np.concatenate(items)
            tables += [np.concatenate(spans), table[np.argsort(-table[:, 4], kind="stable")]]
        copies = all_to_device(tables, device)
        made = [Round(*pair) for pair in zip(copies[::2], copies[1::2], strict=True)]
        return Expansion(tuple(made), most, carried)
