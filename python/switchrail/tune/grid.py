"""The grid of cases that are timed: sizes of the ops in common models, and batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from switchrail.ops.catalog import DEFINITIONS
from switchrail.ops.definition import OpDefinition

if TYPE_CHECKING:
    from switchrail._core import Layout
    from switchrail.ops.batch import Phase


@dataclass(frozen=True, kw_only=True)
class Size:
    """The heads and head sizes, or the channels, of an op in a model.

    Attributes:
        head_size: Head sizes of q and k, and of v; None for an op without heads.
        heads: Numbers of q heads and of v heads, as in a layout; None for an op without heads.
        channels: Number of channels of an op without heads; None for an op with heads.
    """

    head_size: tuple[int, int] | None = None
    heads: tuple[int, int] | None = None
    channels: int | None = None

    def arguments(self, op: str) -> dict[str, Any]:
        """The arguments of the op's input generator, except the head size."""
        if self.heads is None:
            return {} if self.channels is None else {"channels": self.channels}
        axes = DEFINITIONS[op].heads or ()
        return DEFINITIONS[op].generated(
            {axis: count for axis, count in zip(axes, self.heads, strict=True) if axis is not None}
        )

    def small(self) -> Size:
        """The same size with an eighth of the heads or channels."""
        return Size(
            head_size=self.head_size,
            heads=self.heads and (max(1, self.heads[0] // 8), max(1, self.heads[1] // 8)),
            channels=self.channels and self.channels // 8,
        )


def _size(definition: OpDefinition, axes: Mapping[str, int]) -> Size:
    head_size, heads = definition.head_size, definition.heads
    return Size(
        head_size=head_size and (axes[head_size[0]], axes[head_size[1]]),
        heads=heads and (axes[heads[0]], axes[heads[1]] if heads[1] else 1),
        channels=axes.get("C"),
    )


SIZES: Mapping[str, tuple[Size, ...]] = {
    op: tuple(_size(definition, axes) for axes in definition.sizes) for op, definition in DEFINITIONS.items()
}
"""Sizes of common models by op, for a GPU. On other devices, heads and channels are divided by eight."""


def sizes_of(layout: Layout) -> dict[str, tuple[Size, ...]]:
    """The sizes of a model's ops, by op."""
    found: dict[str, dict[Size, None]] = {}
    for layer in layout.layers:
        for op in layer.ops:
            shape = layout.shape(layer.kind, op)
            keys = ("head_size_k", "head_size_v", "q_heads", "v_heads")
            k, v, q_heads, v_heads = (shape.get(key) for key in keys)
            size = Size(
                head_size=None if k is None or v is None else (k, v),
                heads=None if q_heads is None or v_heads is None else (q_heads, v_heads),
                channels=shape.get("channels"),
            )
            found.setdefault(op, {})[size] = None
    return {op: tuple(sizes) for op, sizes in found.items()}


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One batch of the grid.

    Attributes:
        lengths: The number of rows of each sequence.
        cached: The number of cached tokens of each sequence, including those of its rows; None for an op
            without a cache.
    """

    lengths: tuple[int, ...]
    cached: tuple[int, ...] | None = None

    def __str__(self) -> str:
        count, length = len(self.lengths), self.lengths[0]
        cached = "" if self.cached is None else f", {self.cached[0]} cached tokens each"
        return f"{count} x {length} rows{cached}"


_DRAFTS = 4
"""Rows per sequence in verify."""

_PREFILL_ROWS = (512, 2048, 8192, 32768)
_PREFILL_COUNTS = (1, 2, 4, 8, 16, 64)
_DECODE_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_PAGED_ROWS = (64, 512, 1024, 2048, 8192, 32768)
_PAGED_COUNTS = (1, 8, 32, 128)
_CACHED = (512, 2048, 8192, 32768)
_MOST_CACHED = 2**20
"""The most cached tokens of a batch, summed over its sequences."""

_SMALLER = 16
"""On devices other than GPUs, numbers of prefill rows and of cached tokens are divided by this."""


def batches(op: str, phase: Phase, large: bool) -> tuple[Batch, ...]:
    """The grid of batches for an op in a phase.

    For prefill without a cache, each number of rows is divided into 1 to 64 sequences of equal length (1 to
    16 if not `large`), with at least 8 rows each. For prefill with a cache, each number of rows is combined
    with several numbers of cached tokens; no sequence has more rows than cached tokens. Large numbers of rows
    are also combined with as many cached tokens (nothing was cached before) and with an eighth more: some
    backends are much faster if nothing was cached before. For decode and verify, the grid has several numbers
    of sequences, and with a cache several numbers of cached tokens.

    Args:
        op: The op.
        phase: The phase.
        large: Whether the grid is for a GPU.
    """
    scale = 1 if large else _SMALLER
    paged = DEFINITIONS[op].paged
    found: dict[Batch, None] = {}
    if phase == "prefill" and not paged:
        for rows in (rows // scale for rows in _PREFILL_ROWS):
            for count in _PREFILL_COUNTS[:: 1 if large else 2]:
                if rows // count >= 8:
                    found[Batch(lengths=(rows // count,) * count)] = None
    elif phase == "prefill":
        for rows in (rows // scale for rows in _PAGED_ROWS):
            kept = [cached // scale for cached in _CACHED]
            own = [rows, rows * 9 // 8] if rows >= kept[0] else []
            for cached in sorted({*kept, *own}):
                count = max(1, rows // cached)
                found[Batch(lengths=(rows // count,) * count, cached=(cached,) * count)] = None
    else:
        length = _DRAFTS if phase == "verify" else 1
        counts = _PAGED_COUNTS if paged else _DECODE_COUNTS[:: 1 if phase == "decode" else 3]
        for count in counts if large else (1, 4, 16):
            for cached in (cached // scale for cached in (_CACHED if paged else ())):
                if count * cached <= _MOST_CACHED:
                    found[Batch(lengths=(length,) * count, cached=(cached,) * count)] = None
            if not paged:
                found[Batch(lengths=(length,) * count)] = None
    return tuple(found)
