"""Splits the time axis, if a few long sequences would otherwise leave most of the device idle.

A sequence is split into segments of equal length. The first is shorter, because the launch that scans it also
computes maps. The last may be shorter, too. A segment's map gives the state after the segment from the state
before it. The first launch (`PASS` 1) scans the first segment of each sequence and computes the maps of all
other segments except the last. The second launch (`PASS` 2) composes the maps, with about the precision of
float32, into the state before each segment, and scans all segments but the first. `PASS` is 0 if no sequence
is split: one launch is enough.
"""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN201, SIM102
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
import triton
import triton.language as tl
from switchrail.ops.batch import CheckpointBatch, StateBatch

from switchrail_kernels.device import fitted, multiprocessors
from switchrail_kernels.fitted import Costs, Walk
from switchrail_kernels.replay import Options, Tensors
from switchrail_kernels.tables import all_to_device, split_rows


@triton.jit
def locate(
    p_sequences, p_cu_seqlens, sequences, first, length, most, CHUNK: tl.constexpr, PASS: tl.constexpr
):
    """The work of program `tl.program_id(2)` of `Segments.programs`.

    Args:
        p_sequences: `Chunks.sequences`.
        p_cu_seqlens: The batch's `cu_seqlens`.
        sequences: The number of nonempty sequences.
        first: Tokens in a first segment.
        length: Maximum tokens in any other segment.
        most: Segments of the longest sequence.
        CHUNK: Tokens per chunk.
        PASS: The launch.

    Returns:
        The sequence's index in `Chunks.sequences`, the segment's number, the sequence's index in the batch,
        the segment's first chunk, first row and number of rows (0 or less if there is no such segment),
        whether it is the sequence's last segment, and the sequence's number of rows.
    """
    i_z = tl.program_id(2)
    i_seg = 0
    if PASS == 1:
        if i_z >= sequences:
            i_seg = (i_z - sequences) % (most - 2) + 1
            i_z = (i_z - sequences) // (most - 2)
    if PASS == 2:
        i_seg = i_z % (most - 1) + 1
        i_z = i_z // (most - 1)
    i_n = tl.load(p_sequences + 2 * i_z)
    i_c = tl.load(p_sequences + 2 * i_z + 1).to(tl.int64)
    row = tl.load(p_cu_seqlens + i_n).to(tl.int64)
    total = (tl.load(p_cu_seqlens + i_n + 1) - row).to(tl.int32)
    rows = total
    is_last = True
    if PASS != 0:
        start = 0
        if i_seg > 0:
            start = first + (i_seg - 1) * length
        rows = tl.minimum(total - start, tl.where(i_seg > 0, length, first))
        is_last = start + rows >= total
        row += start
        i_c += start // CHUNK
    return i_z, i_seg, i_n, i_c, row, rows, is_last, total


@triton.jit
def clear_rows(p_out, total, o_v, s_out: tl.constexpr, V: tl.constexpr, CHUNK: tl.constexpr):
    """Write zeros to the columns `o_v` of `total` rows, `s_out` apart; used for padding."""
    o_t = tl.arange(0, CHUNK)
    b_zero = tl.zeros((CHUNK, o_v.shape[0]), p_out.dtype.element_ty)
    for i_t in range(0, total, CHUNK):
        m_v = (i_t + o_t < total)[:, None] & (o_v < V)[None, :]
        p_row = p_out + (i_t + o_t)[:, None].to(tl.int64) * s_out
        tl.store(p_row + o_v[None, :], b_zero, mask=m_v)


@dataclass(frozen=True, slots=True)
class Segments:
    """How the time axis is split.

    Attributes:
        first: Chunks in a first segment.
        length: Maximum chunks in any other segment.
        most: Segments of the longest sequence.
        split: The number of sequences with more than one segment.
    """

    first: int = 0
    length: int = 0
    most: int = 1
    split: int = 0

    def programs(self, sequences: int) -> tuple[tuple[int, int], ...]:
        """The launches: for each one its `PASS`, and the number of programs per head and block of values."""
        if not self.split:
            return ((0, sequences),)
        return (1, sequences + self.split * (self.most - 2)), (2, self.split * (self.most - 1))


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks that the kernels scan.

    Attributes:
        blocks: [blocks, 4] int32, the blocks of chunks, as in `split_rows`.
        sequences: [nonempty sequences, 2] int32, longest first: the index in the batch, and the first chunk.
        counts: The number of chunks of each sequence in `sequences`.
        seqlens: The lengths of all sequences.
        abreast: The total number of chunks divided by the longest sequence's number of chunks, rounded down.
        every: Rows between checkpoints; 0 for none.
        places: The number of chunks between checkpoints, rounded up to whole blocks.
        segments: The results of `plan_segments`, by number of heads. None if checkpoints split blocks; then
            the time axis is not split.
    """

    blocks: torch.Tensor
    sequences: torch.Tensor
    counts: np.ndarray
    seqlens: tuple[int, ...]
    abreast: int = 0
    every: int = 0
    places: int = 0
    segments: dict[int, Segments] | None = field(default_factory=dict)

    @property
    def are_short(self) -> bool:
        """Whether sequences have fewer than `_SHORT` chunks on average."""
        return int(self.counts.sum()) < _SHORT * len(self.counts)

    @property
    def ahead(self) -> int:
        """Number of chunks loaded ahead by programs that scan several sequences; 0 for no such programs.

        Such programs are faster if sequences are short. A program loads chunks of its present and its next
        sequence only. So it can't load more chunks ahead than the shortest sequence has.
        """
        count = len(self.counts)
        if count == 0 or int(self.counts.sum()) >= 8 * count:
            return 0
        if int(self.counts.sum()) <= 2 * count:
            return 1
        return 2 if self.counts[-1] > 1 else 0

    @property
    def are_single(self) -> bool:
        """Whether every nonempty sequence has a single chunk; False if all are empty."""
        return len(self.counts) > 0 and int(self.counts[0]) == 1

    @classmethod
    def of(cls, batch: StateBatch, chunk: int, per_block: int = 1) -> Chunks:
        """Split the sequences of a batch into chunks of `chunk` tokens and blocks of `per_block` chunks."""
        every = batch.checkpoint_every if isinstance(batch, CheckpointBatch) else 0
        size = chunk * per_block
        segments: dict[int, Segments] | None = None if every % size else {}
        if segments is None:
            pieces = split_rows(batch.seqlens, every)
            blocks = split_rows(pieces[:, 3].tolist(), size)
            blocks[:, 1] += pieces[blocks[:, 0], 1]
            blocks[:, 0] = pieces[blocks[:, 0], 0]
        else:
            blocks = split_rows(batch.seqlens, size)
        first = np.flatnonzero(blocks[:, 1] == 0)
        sequence = blocks[first, 0]
        counts = -(-np.asarray(batch.seqlens, dtype=np.int64)[sequence] // chunk)
        order = np.argsort(-counts, kind="stable")
        sequences = np.stack([sequence, first * per_block], axis=1)[order]
        tables = all_to_device([blocks, sequences.astype(np.int32)], batch.cu_seqlens.device)
        places = -(-every // size) * per_block
        counts = counts[order]
        abreast = int(counts.sum() // counts[0]) if len(counts) else 0
        return cls(tables[0], tables[1], counts, batch.seqlens, abreast, every, places, segments)

    def arguments(
        self, batch: StateBatch, heads: int, device: torch.device, walk: Walk
    ) -> tuple[Tensors, Options]:
        """A layer's launch arguments other than its own tensors and slots, for `Calls.again`."""
        split = self.split(heads, device, walk)
        kept = batch.checkpoint_slots if isinstance(batch, CheckpointBatch) else None
        tensors = (batch.cu_seqlens, batch.has_initial_state, kept, self.blocks, self.sequences)
        return tensors, (self.every, self.places, split.first, split.length, split.most, split.split)

    def split(self, heads: int, device: torch.device, walk: Walk) -> Segments:
        """How the time axis is split for a layer with this number of heads."""
        if self.segments is None or len(self.counts) == 0:
            return Segments()
        if heads not in self.segments:
            costs = fitted(device).walks[walk]
            self.segments[heads] = plan_segments(self.counts, heads, multiprocessors(device), costs)
        return self.segments[heads]


def plan_segments(counts: np.ndarray, heads: int, processors: int, costs: Costs) -> Segments:
    """Choose the segments with the smallest estimated time.

    Args:
        counts: The number of chunks of each sequence, in descending order.
        heads: The number of heads. Heads are scanned independently.
        processors: The number of multiprocessors.
        costs: The measured costs of the scan.
    """
    longest, total = int(counts[0]), int(counts.sum())
    busy = costs.pace.at(_MANY) / _MANY * heads / processors
    best = Segments()

    def time(longest: int, work: float) -> float:
        return max(longest * costs.pace.at(work / longest * heads / processors), work * busy)

    least = 0.95 * time(longest, total * costs.parts)
    if longest < costs.least:
        return best
    choices = [(most, math.ceil(longest / (most - 1 + costs.first))) for most in range(3, 13)]
    choices = [(most, length) for most, length in choices if longest > (most - 1) * length]
    lengths = np.array([length for _, length in choices])[:, None]
    firsts = longest - np.array([most - 1 for most, _ in choices])[:, None] * lengths
    after = np.maximum(counts - firsts, 0)
    later = -(-after // lengths)
    # For each choice: the chunks of a first segment, all chunks after first segments, the segments that need
    # a map, and the sequences that are split.
    sums = zip(
        firsts[:, 0].tolist(),
        after.sum(1).tolist(),
        np.maximum(later - 1, 0).sum(1).tolist(),
        (after > 0).sum(1).tolist(),
        strict=True,
    )
    for (most, length), (first, rest, inner, split) in zip(choices, sums, strict=True):
        maps = inner * costs.end_parts
        if (split * costs.parts + maps) * heads > costs.resident * processors:
            break
        launches = (
            time(first, (total - rest) * costs.parts + maps * costs.end * length),
            time(length, rest * costs.parts),
        )
        total_time = sum(launches) + (most - 2) * costs.compose
        if total_time < least:
            least = total_time
            best = Segments(first, length, most, split)
    return best


_SHORT = 32

_MANY = 1000.0
"""So many programs per multiprocessor that all multiprocessors are busy until the end."""

__all__ = ["Chunks", "Segments", "clear_rows", "locate", "plan_segments"]
