"""Decode: one token per sequence."""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from switchrail.ops.batch import StateBatch

from switchrail_kernels.alignment import is_transposed
from switchrail_kernels.launch import TABLES, Launcher, padded
from switchrail_kernels.linear.operands import Operands
from switchrail_kernels.linear.time_steps import time_step
from switchrail_kernels.states import within_slot


@triton.jit(do_not_specialize_on_alignment=TABLES)
def _step(
    p_q, p_k, p_v, p_rate, p_dt, p_bias, p_skip, p_state, p_out, p_read_slots, p_write_slots,
    scale, dt_min, dt_max,
    s_qt, s_qh, s_kt, s_kh, s_vt, s_vh, s_dt, s_dth, s_slot,
    H,
    GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    STEPS: tl.constexpr, BIAS: tl.constexpr, SOFTPLUS: tl.constexpr, SKIP: tl.constexpr, KV: tl.constexpr,
):  # fmt: skip
    i_h = tl.program_id(1)
    i_n = tl.program_id(2).to(tl.int64)
    read = tl.load(p_read_slots + i_n)
    write = tl.load(p_write_slots + i_n)
    o_k = tl.arange(0, BK)
    o_v = tl.program_id(0) * BV + tl.arange(0, BV)
    m_k = o_k < K
    m_v = o_v < V
    o_state = within_slot(i_h, o_v, o_k, V, K, KV)
    m_read = (o_v < tl.where(read >= 0, V, 0))[:, None] & m_k[None, :]
    m_write = (o_v < tl.where(write >= 0, V, 0))[:, None] & m_k[None, :]
    b_s = tl.load(p_state + read * s_slot + o_state, mask=m_read, other=0.0).to(tl.float32)
    b_q = tl.load(p_q + i_n * s_qt + i_h // GROUP * s_qh + o_k, mask=m_k, other=0.0).to(tl.float32) * scale
    b_k = tl.load(p_k + i_n * s_kt + i_h // GROUP * s_kh + o_k, mask=m_k, other=0.0).to(tl.float32)
    b_v = tl.load(p_v + i_n * s_vt + i_h * s_vh + o_v, mask=m_v, other=0.0).to(tl.float32)
    b_rate = tl.load(p_rate + i_h)
    b_x = b_v
    if STEPS:
        b_dt = tl.load(p_dt + i_n * s_dt + i_h * s_dth)
        b_bias = tl.load(p_bias + i_h).to(tl.float32) if BIAS else 0.0
        b_dt = time_step(b_dt, b_bias, dt_min, dt_max, SOFTPLUS)
        b_rate *= b_dt
        b_x = b_v * b_dt
    # The output is computed from the old state, so that it need not wait for the new state.
    b_decay = tl.exp(b_rate)
    b_o = b_decay * tl.sum(b_s * b_q[None, :], 1) + b_x * tl.sum(b_k * b_q, 0)
    if SKIP:
        b_o += b_v * tl.load(p_skip + i_h).to(tl.float32)
    b_o = tl.where(write >= 0, b_o, 0.0)
    tl.store(p_out + (i_n * H + i_h) * V + o_v, b_o.to(p_out.dtype.element_ty), mask=m_v)
    b_s = b_s * b_decay + b_x[:, None] * b_k[None, :]
    tl.store(p_state + write * s_slot + o_state, b_s.to(p_state.dtype.element_ty), mask=m_write)


_launch_step = Launcher(_step)


def step(operands: Operands, batch: StateBatch) -> None:
    """Run one token per sequence."""
    sequences = operands.out.shape[0]
    heads, group, key_size, value_size = operands.sizes
    block_v = min(4 if sequences == 1 else 8, padded(value_size))
    strides = (*operands.row_strides, *operands.dt_strides, operands.state.stride(0))
    sizes = (group, key_size, value_size, padded(key_size), block_v)
    _launch_step(
        (-(-value_size // block_v), heads, sequences),
        (*operands.tensors, batch.read_slots, batch.write_slots),
        (operands.scale, *operands.limits, *strides, heads),
        (*sizes, *operands.flags, is_transposed(operands.state)),
        num_warps=1,
    )
