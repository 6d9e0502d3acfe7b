"""The convolution of drafted rows in chains and trees, and its commit.

A row's window follows from its path: the rows that precede it on the path, and before them the old state. The
inputs of all rows are recorded, since a state consists of inputs only.
"""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN201, ANN202, RUF005
# mypy: disable-error-code="assignment, no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from switchrail.ops.batch import VerifyBatch

from switchrail_kernels.launch import TABLES, Launcher
from switchrail_kernels.short_conv.convolve import activate, entry, load_bias
from switchrail_kernels.tables import all_to_device, load_piece, load_slots, split_rows, to_device

DRAFT_ROWS = 8
"""Rows per tile."""

REACH = 16
"""Maximum number of earlier rows that a row's result depends on: the maximum number of taps minus one."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """The drafted rows of a batch.

    Attributes:
        seqlens: The number of rows of each sequence.
        tiles: [tiles, 4] int32, at most `DRAFT_ROWS` rows of one sequence each, as in `split_rows`.
        before: [T, REACH] int32, each row's window, from its last entry to the first: a row of the sequence,
            or -1, -2, ... for the columns of the old state, from the last to the first.
    """

    seqlens: tuple[int, ...]
    tiles: torch.Tensor
    before: torch.Tensor

    @classmethod
    def of(cls, batch: VerifyBatch) -> Drafts:
        """Find the window of each row of a batch."""
        if batch.parent_rows is None:
            tiles = to_device(split_rows(batch.seqlens, DRAFT_ROWS), batch.cu_seqlens.device)
            drafts = cls(batch.seqlens, tiles, tiles.new_empty((sum(batch.seqlens), REACH)))
            drafts.update(batch)
            return drafts
        lengths = np.asarray(batch.seqlens, dtype=np.int64)
        start = np.repeat(np.cumsum(lengths) - lengths, lengths)
        parents = np.asarray(batch.parent_rows, dtype=np.int64)
        before = np.empty((len(parents), REACH), dtype=np.int32)
        at = np.arange(len(parents)) - start
        for column in range(REACH):
            at = np.where(at >= 0, parents[start + np.maximum(at, 0)], at - 1)
            before[:, column] = at
        tables = [split_rows(batch.seqlens, DRAFT_ROWS), before]
        return cls(batch.seqlens, *all_to_device(tables, batch.cu_seqlens.device))

    def update(self, batch: VerifyBatch) -> None:
        """Find the windows for another batch with the same lengths, in place and on the device."""
        if len(self.tiles):
            _launch_find_windows(
                (len(self.tiles), 1, 1),
                (batch.parents, self.tiles, self.before),
                (),
                (DRAFT_ROWS, REACH),
                num_warps=1,
            )


@triton.jit(do_not_specialize_on_alignment=TABLES)
def _find_windows(p_parents, p_tiles, p_before, BT: tl.constexpr, REACH: tl.constexpr):
    """Find the windows of one tile: back along the path, then into the old state."""
    _, within, row, rows = load_piece(p_tiles, tl.program_id(0))
    o_t = tl.arange(0, BT)
    p_before += (row + o_t) * REACH
    p_parents += row - within
    b_at = within + o_t
    for column in range(REACH):
        b_parent = tl.load(p_parents + b_at, mask=(o_t < rows) & (b_at >= 0), other=-1)
        b_at = tl.where(b_at >= 0, tl.maximum(tl.minimum(b_parent, b_at - 1), -1), b_at - 1)
        tl.store(p_before + column, b_at, mask=o_t < rows)


_launch_find_windows = Launcher(_find_windows)


@triton.jit(do_not_specialize_on_alignment=TABLES)
def verify(
    p_x, p_weight, p_bias, p_state, p_out, p_kept, p_tiles, p_before, p_read_slots, p_write_slots,
    p_has_initial_state,
    s_xt, s_xc, s_slot,
    C,
    W: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr, REACH: tl.constexpr, BIAS: tl.constexpr,
    SILU: tl.constexpr, S_W: tl.constexpr, S_C: tl.constexpr,
):  # fmt: skip
    """Computes one tile and `BC` channels, and records the inputs in `p_kept` [T, C]."""
    i_p = tl.program_id(0)
    i_c = tl.program_id(1)
    i_n, within, row, rows = load_piece(p_tiles, i_p)
    read, write, has = load_slots(p_read_slots, p_write_slots, p_has_initial_state, i_n)
    o_t = tl.arange(0, BT)
    o_c = i_c * BC + tl.arange(0, BC)
    m_t = o_t < rows
    m_c = o_c < C
    m_out = m_t[:, None] & m_c[None, :]
    o_out = (row + o_t)[:, None] * C + o_c[None, :]
    if write < 0:  # padding
        tl.store(p_out + o_out, tl.zeros((BT, BC), p_out.dtype.element_ty), mask=m_out)
        return
    o_x = o_c.to(tl.int64)[None, :] * s_xc
    b_x = tl.load(p_x + (row + o_t)[:, None] * s_xt + o_x, mask=m_out, other=0.0)
    tl.store(p_kept + o_out, b_x, mask=m_out)
    b_tap = tl.load(p_weight + o_c * W + (W - 1), mask=m_c, other=0.0)
    b_y = load_bias(p_bias, o_c, m_c, BIAS)[None, :] + b_x.to(tl.float32) * b_tap.to(tl.float32)[None, :]
    m_old = o_c < tl.where(has & (read >= 0), C, 0)
    p_old = p_state + read * s_slot
    for j in tl.static_range(W - 1):
        o_from = tl.load(p_before + (row + o_t) * REACH + (W - 2 - j), mask=m_t, other=0)
        b_x = tl.load(
            p_x + (row - within + o_from)[:, None] * s_xt + o_x,
            mask=(m_t & (o_from >= 0))[:, None] & m_c[None, :],
            other=0.0,
        )
        b_old = tl.load(
            entry(p_old, (W - 1 + o_from)[:, None], o_c[None, :], C, S_W, S_C),
            mask=(m_t & (o_from < 0))[:, None] & m_old[None, :],
            other=0.0,
        )
        b_tap = tl.load(p_weight + o_c * W + j, mask=m_c, other=0.0)
        b_y += (
            tl.where((o_from >= 0)[:, None], b_x.to(tl.float32), b_old.to(tl.float32))
            * b_tap.to(tl.float32)[None, :]
        )
    tl.store(p_out + o_out, activate(b_y, SILU).to(p_out.dtype.element_ty), mask=m_out)


@triton.jit(do_not_specialize_on_alignment=TABLES)
def replay(
    p_kept, p_state, p_before, p_accepted, p_cu_seqlens, p_read_slots, p_write_slots, p_has_initial_state,
    s_slot,
    C,
    W: tl.constexpr, BC: tl.constexpr, REACH: tl.constexpr, S_W: tl.constexpr, S_C: tl.constexpr,
):  # fmt: skip
    """Write `BC` channels of one sequence's state after its last accepted row."""
    i_n = tl.program_id(0).to(tl.int64)
    i_c = tl.program_id(1)
    read = tl.load(p_read_slots + i_n)
    write = tl.load(p_write_slots + i_n)
    row = tl.load(p_cu_seqlens + i_n).to(tl.int64)
    length = tl.load(p_cu_seqlens + i_n + 1) - row
    if (write < 0) | (length <= 0):
        return
    last = tl.minimum(tl.load(p_accepted + i_n), length - 1)
    o_c = i_c * BC + tl.arange(0, BC)
    m_c = o_c < C
    old = tl.where(tl.load(p_has_initial_state + i_n) & (read >= 0), C, 0)
    for j in tl.static_range(W - 1):
        # Column j of the new state is the input of the row that is W - 2 - j rows before the last accepted
        # one.
        i_from = last
        if j < W - 2:
            m_last = last >= 0
            i_from = tl.load(p_before + (row + last) * REACH + (W - 3 - j), mask=m_last, other=0).to(tl.int64)
            i_from = tl.where(m_last, i_from, j + 1 - W)
        i_from = tl.maximum(i_from, j + 1 - W)
        b_x = tl.load(p_kept + (row + i_from) * C + o_c, mask=o_c < tl.where(i_from >= 0, C, 0), other=0.0)
        b_s = tl.load(
            entry(p_state + read * s_slot, W - 1 + i_from, o_c, C, S_W, S_C),
            mask=o_c < tl.where(i_from < 0, old, 0),
            other=0.0,
        )
        tl.debug_barrier()  # waits until other threads have read the data replaced below
        b_s = tl.where(i_from >= 0, b_x.to(tl.float32), b_s.to(tl.float32))
        p_to = entry(p_state + write * s_slot, j, o_c, C, S_W, S_C)
        tl.store(p_to, b_s.to(p_state.dtype.element_ty), mask=m_c)


@triton.jit(do_not_specialize_on_alignment=TABLES)
def each(
    p_kept, p_state, p_row_states, p_before, p_cu_seqlens, p_read_slots, p_row_slots, p_has_initial_state,
    s_slot, s_row_slot,
    C, most,
    W: tl.constexpr, BC: tl.constexpr, REACH: tl.constexpr, S_W: tl.constexpr, S_C: tl.constexpr,
    R_W: tl.constexpr, R_C: tl.constexpr,
):  # fmt: skip
    """Write `BC` channels of one sequence's state after each row that has a slot.

    The old state is read before the first new state is written, since a new state may go to the old state's
    slot.
    """
    i_n = tl.program_id(0).to(tl.int64)
    read = tl.load(p_read_slots + i_n)
    row = tl.load(p_cu_seqlens + i_n).to(tl.int64)
    rows = (tl.load(p_cu_seqlens + i_n + 1) - row).to(tl.int32)
    if read < 0:
        return
    o_c = tl.program_id(1) * BC + tl.arange(0, BC)
    m_c = o_c < C
    m_old = o_c < tl.where(tl.load(p_has_initial_state + i_n), C, 0)
    old = ()
    for j in tl.static_range(W - 1):
        p_from = entry(p_state + read * s_slot, j, o_c, C, S_W, S_C)
        old = old + (tl.load(p_from, mask=m_old, other=0.0).to(tl.float32),)
    tl.debug_barrier()
    for i in range(rows):
        slot = tl.load(p_row_slots + i_n * most + i)
        if slot >= 0:
            for j in tl.static_range(W - 1):
                # Column j of the new state is the input of the row that is W - 2 - j rows before row i.
                i_from = i
                if j < W - 2:
                    i_from = tl.load(p_before + (row + i) * REACH + (W - 3 - j))
                m_new = o_c < tl.where(i_from >= 0, C, 0)
                b_s = tl.load(p_kept + (row + i_from) * C + o_c, mask=m_new, other=0.0).to(tl.float32)
                for column in tl.static_range(W - 1):
                    b_s = tl.where(i_from == column + 1 - W, old[column], b_s)
                p_to = entry(p_row_states + slot * s_row_slot, j, o_c, C, R_W, R_C)
                tl.store(p_to, b_s.to(p_row_states.dtype.element_ty), mask=m_c)
