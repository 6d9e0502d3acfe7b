"""Verifies drafted tokens in chains and trees, by tiles of 16 rows.

A row's result combines the state before the drafts, decayed along the row's path, with the rows on the path.
P[i, j] has the decay from row j to row i if j is on the path to i; otherwise it is 0. Rows are visited from
the tile's own rows back to the sequence's first row. So log decays are sums of gates, never differences of
sums.
"""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from switchrail.ops.batch import StateBatch

from switchrail_kernels.alignment import is_transposed
from switchrail_kernels.constants import LOG2E
from switchrail_kernels.drafts import DRAFT_ROWS, Drafts, Record, on_path
from switchrail_kernels.launch import TABLES, Launcher, launch_options, padded
from switchrail_kernels.linear.operands import Operands
from switchrail_kernels.linear.time_steps import time_step
from switchrail_kernels.states import within_slot
from switchrail_kernels.tables import load_piece, load_slots


@triton.jit
def _weights(
    p_dt, p_bias, rate, i_h, o_j, m_j, dt_min, dt_max, s_dt,
    STEPS: tl.constexpr, BIAS: tl.constexpr, SOFTPLUS: tl.constexpr,
):  # fmt: skip
    """The write factors of rows, and the logs of their decays; zeros outside `m_j`."""
    if STEPS:
        b_w = tl.load(p_dt + o_j.to(tl.int64) * s_dt, mask=m_j, other=0.0)
        b_bias = tl.load(p_bias + i_h).to(tl.float32) if BIAS else 0.0
        b_w = time_step(b_w, b_bias, dt_min, dt_max, SOFTPLUS)
        b_w = tl.where(m_j, b_w, 0.0)
        b_g = b_w * rate
    else:
        b_w = tl.where(m_j, 1.0, 0.0)
        b_g = tl.where(m_j, rate, 0.0)
    return b_w, b_g


@triton.jit(do_not_specialize_on_alignment=TABLES)
def _verify(
    p_q, p_k, p_v, p_rate, p_dt, p_bias, p_skip, p_state, p_out, p_kept_u, p_kept_k, p_kept_g, p_tiles,
    p_paths, p_read_slots, p_write_slots, p_has_initial_state,
    scale, dt_min, dt_max,
    s_qt, s_qh, s_kt, s_kh, s_vt, s_vh, s_dt, s_dth, s_slot,
    words, H,
    GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    STEPS: tl.constexpr, BIAS: tl.constexpr, SOFTPLUS: tl.constexpr, SKIP: tl.constexpr, KV: tl.constexpr,
):  # fmt: skip
    """Process one tile, for one head and `BV` of its values. P and out are transposed, as in the scan."""
    dtype = p_k.dtype.element_ty
    i_h = tl.program_id(1)
    i_p = tl.program_id(2)
    i_n, within, row, rows = load_piece(p_tiles, i_p)
    read, write, has = load_slots(p_read_slots, p_write_slots, p_has_initial_state, i_n)
    o_i = tl.arange(0, DRAFT_ROWS)
    o_k = tl.arange(0, BK)
    o_v = tl.program_id(0) * BV + tl.arange(0, BV)
    m_k = o_k < K
    m_v = (o_i < rows)[:, None] & (o_v < V)[None, :]
    o_own = (row + o_i)[:, None] * (H * V) + i_h * V + o_v[None, :]
    if write < 0:  # padding
        tl.store(p_out + o_own, tl.zeros((DRAFT_ROWS, BV), p_out.dtype.element_ty), mask=m_v)
        return

    rate = tl.load(p_rate + i_h)
    o_state = within_slot(i_h, o_v, o_k, V, K, KV)
    m_read = (o_v < tl.where(has & (read >= 0), V, 0))[:, None] & m_k[None, :]
    b_s = tl.load(p_state + read * s_slot + o_state, mask=m_read, other=0.0)
    m_own = o_i < rows
    m_own_k = m_own[:, None] & m_k[None, :]
    p_q += (row + o_i)[:, None] * s_qt + i_h // GROUP * s_qh + o_k[None, :]
    b_q = tl.load(p_q, mask=m_own_k, other=0.0)
    # The state's part of the output is computed first, to free the state's registers.
    b_read = tl.dot(b_s.to(dtype), tl.trans(b_q), input_precision="ieee")
    end = within + rows
    row -= within
    p_k += row * s_kt + i_h // GROUP * s_kh + o_k[None, :]
    p_v += row * s_vt + i_h * s_vh + o_v[None, :]
    p_dt += row * s_dt + i_h * s_dth
    p_paths += (row + within + o_i)[None, :] * words
    seen = tl.where(m_own, end, 0)[None, :]
    b_since = tl.zeros((DRAFT_ROWS,), tl.float32)
    b_o = tl.zeros((BV, DRAFT_ROWS), tl.float32)
    for i in range(0, end, DRAFT_ROWS):
        o_j = within - i + o_i
        o_row = o_j.to(tl.int64)
        m_j = o_j < end
        b_k = tl.load(p_k + o_row[:, None] * s_kt, mask=m_j[:, None] & m_k[None, :], other=0.0)
        b_v = tl.load(p_v + o_row[:, None] * s_vt, mask=m_j[:, None] & (o_v < V)[None, :], other=0.0)
        b_w, b_g = _weights(
            p_dt, p_bias, rate, i_h, o_j, m_j, dt_min, dt_max, s_dt, STEPS, BIAS, SOFTPLUS
        )  # fmt: skip
        _, b_later = _weights(
            p_dt, p_bias, rate, i_h, o_j + 1, o_j + 1 < end, dt_min, dt_max, s_dt, STEPS, BIAS, SOFTPLUS
        )  # fmt: skip
        m_path = on_path(p_paths, o_j[:, None], seen)
        m_next = on_path(p_paths, (o_j + 1)[:, None], seen)
        b_x = tl.where(m_next, (b_later * LOG2E)[:, None], 0.0)
        b_decay = tl.exp2(tl.cumsum(b_x, 0, reverse=True) + b_since[None, :])
        b_since += tl.sum(b_x, 0)
        b_p = tl.dot(b_k, tl.trans(b_q), input_precision="ieee") * (b_decay * (b_w * scale)[:, None])
        b_p = tl.where(m_path, b_p, 0.0)
        if i == 0:
            if SKIP:
                b_p += tl.where(o_i[:, None] == o_i[None, :], tl.load(p_skip + i_h).to(tl.float32), 0.0)
            tl.store(p_kept_u + o_own, b_v.to(tl.float32) * b_w[:, None], mask=m_v)
            if tl.program_id(0) == 0:
                tl.store(p_kept_g + (row + o_row) * H + i_h, b_g, mask=m_own)
                if i_h % GROUP == 0:
                    o_kept = (row + o_row)[:, None] * (H // GROUP * K) + i_h // GROUP * K + o_k[None, :]
                    tl.store(p_kept_k + o_kept, b_k, mask=m_own_k)
        if i == within:  # the gate of the first row, which has no row before it
            b_since += tl.sum(tl.where(m_path & (o_j == 0)[:, None], (b_g * LOG2E)[:, None], 0.0), 0)
        b_o = tl.dot(tl.trans(b_v), b_p.to(dtype), acc=b_o, input_precision="ieee")
    b_start = tl.exp2(b_since) * scale
    b_o += b_read * b_start[None, :]
    tl.store(p_out + o_own, tl.trans(b_o).to(p_out.dtype.element_ty), mask=m_v)


_launch_verify = Launcher(_verify)


def verify(operands: Operands, batch: StateBatch, drafts: Drafts) -> Record:
    """Run drafted rows in one launch; leaves the states unchanged."""
    record = Record.empty(operands.k, operands.v)
    if len(drafts.tiles) == 0:
        return record
    heads, group, key_size, value_size = operands.sizes
    block_k = padded(key_size, 16)
    block_v = min(padded(value_size, 16), max(8192 // block_k, 16))
    slots = (batch.read_slots, batch.write_slots, batch.has_initial_state)
    strides = (*operands.row_strides, *operands.dt_strides, operands.state.stride(0))
    _launch_verify(
        (-(-value_size // block_v), heads, len(drafts.tiles)),
        (*operands.tensors, record.u, record.k, record.g, drafts.tiles, drafts.paths, *slots),
        (operands.scale, *operands.limits, *strides, drafts.paths.shape[1], heads),
        (group, key_size, value_size, block_k, block_v, *operands.flags, is_transposed(operands.state)),
        num_warps=4,
        **launch_options(operands.v.dtype),
    )
    return record
