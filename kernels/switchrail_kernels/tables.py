"""Index tables for the kernels' grids, built once per step from the lengths on the host."""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl


def to_device(table: np.ndarray, device: torch.device) -> torch.Tensor:
    """Copy a small host table. On a GPU the copy is queued, and the host doesn't wait for it."""
    tensor = torch.from_numpy(table)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def all_to_device(tables: Sequence[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """Copy int32 tables at once. If all have a multiple of 4 columns, the copies are aligned to 16 bytes."""
    whole = to_device(np.concatenate([table.ravel() for table in tables]), device)
    parts = torch.split(whole, [table.size for table in tables])
    return [part.view(table.shape) for part, table in zip(parts, tables, strict=True)]


def ranges(counts: np.ndarray) -> np.ndarray:
    """For each count, the numbers from 0 to count - 1; concatenated."""
    within: np.ndarray = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return within


def split_rows(seqlens: Sequence[int], rows: int) -> np.ndarray:
    """Split every sequence into pieces of at most `rows` rows. Empty sequences have no piece.

    Returns:
        [pieces, 4] int32, in order of sequence and time: sequence, first row within the sequence, first
        packed row, number of rows.
    """
    lengths = np.asarray(seqlens, dtype=np.int64)
    counts = -(-lengths // rows)
    sequence = np.repeat(np.arange(len(lengths)), counts)
    start = np.cumsum(lengths) - lengths
    within = ranges(counts) * rows
    table = np.empty((len(sequence), 4), dtype=np.int32)
    table[:, 0] = sequence
    table[:, 1] = within
    table[:, 2] = start[sequence] + within
    table[:, 3] = np.minimum(rows, lengths[sequence] - within)
    return table


@triton.jit
def load_piece(p_pieces, i):
    """Piece `i` of `split_rows`: sequence, first row within it, first packed row, number of rows."""
    p_pieces += 4 * i
    row = tl.load(p_pieces + 2).to(tl.int64)
    return tl.load(p_pieces), tl.load(p_pieces + 1), row, tl.load(p_pieces + 3)


@triton.jit
def load_slots(p_read_slots, p_write_slots, p_has_initial_state, i_n):
    """Sequence `i_n`'s slots to read and to write, and whether it has a state to read."""
    read, write = tl.load(p_read_slots + i_n), tl.load(p_write_slots + i_n)
    return read, write, tl.load(p_has_initial_state + i_n)
