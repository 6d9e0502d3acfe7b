"""Inputs of `mamba2`'s scan that don't depend on a state, computed for all chunks at once."""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from switchrail_kernels.constants import LOG2E
from switchrail_kernels.launch import TABLES, Launcher, launch_options, padded
from switchrail_kernels.linear.operands import Operands
from switchrail_kernels.linear.time_steps import time_step
from switchrail_kernels.replay import scratch
from switchrail_kernels.segments import Chunks


@triton.jit(do_not_specialize_on_alignment=TABLES)
def _prepare(
    p_q, p_k, p_rate, p_dt, p_bias, p_scores, p_gates, p_blocks,
    dt_min, dt_max,
    s_dt, s_dth, s_qt, s_qh, s_kt, s_kh,
    G: tl.constexpr, GROUP: tl.constexpr, BG: tl.constexpr, K: tl.constexpr, BK: tl.constexpr,
    CHUNK: tl.constexpr, BIAS: tl.constexpr, SOFTPLUS: tl.constexpr,
):  # fmt: skip
    """Compute the products of queries and keys of one chunk and group, and the gates of the group's heads."""
    i_c = tl.program_id(0).to(tl.int64)
    i_g = tl.program_id(1)
    row = tl.load(p_blocks + 4 * i_c + 2).to(tl.int64)
    rows = tl.load(p_blocks + 4 * i_c + 3)
    o_t = tl.arange(0, CHUNK)
    o_k = tl.arange(0, BK)
    o_row = row + o_t
    m_k = (o_t < rows)[:, None] & (o_k < K)[None, :]
    b_q = tl.load(p_q + i_g * s_qh + o_row[:, None] * s_qt + o_k[None, :], mask=m_k, other=0.0)
    b_k = tl.load(p_k + i_g * s_kh + o_row[:, None] * s_kt + o_k[None, :], mask=m_k, other=0.0)
    b_p = tl.dot(b_k, tl.trans(b_q), input_precision="ieee")
    b_p = tl.where(o_t[None, :] >= o_t[:, None], b_p, 0.0)
    p_scores += (i_c * G + i_g) * (CHUNK * CHUNK) + o_t[:, None] * CHUNK + o_t[None, :]
    tl.store(p_scores, b_p.to(p_scores.dtype.element_ty))

    m_h = (tl.arange(0, BG) < GROUP)[:, None]
    o_h = (i_g * GROUP + tl.arange(0, BG))[:, None]
    m_w = m_h & (o_t < rows)[None, :]
    b_w = tl.load(p_dt + o_row[None, :] * s_dt + o_h * s_dth, mask=m_w, other=0.0)
    b_bias = tl.load(p_bias + o_h, mask=m_h, other=0.0).to(tl.float32) if BIAS else 0.0
    b_w = time_step(b_w, b_bias, dt_min, dt_max, SOFTPLUS)
    b_w = tl.where(m_w, b_w, 0.0)
    # Log decays have base 2; 2^-192 is 0 in float32. Sums of multiples of 2^-10 are exact, so their
    # differences keep small digits after a huge gate.
    b_g = tl.maximum(b_w * (tl.load(p_rate + o_h, mask=m_h, other=0.0) * LOG2E), -192.0)
    b_coarse = tl.floor(b_g * 1024.0) * (1.0 / 1024.0)
    b_rest = b_g - b_coarse
    b_hi = tl.cumsum(b_coarse, 1)
    b_lo = tl.cumsum(b_rest, 1)
    b_after = (tl.sum(b_coarse, 1)[:, None] - b_hi) + (tl.sum(b_rest, 1)[:, None] - b_lo)
    p_gates += (i_c * (G * GROUP) + o_h) * (5 * CHUNK) + o_t[None, :]
    tl.store(p_gates, b_w, mask=m_h)
    tl.store(p_gates + CHUNK, b_hi, mask=m_h)
    tl.store(p_gates + 2 * CHUNK, b_lo, mask=m_h)
    tl.store(p_gates + 3 * CHUNK, b_w * tl.exp2(b_after), mask=m_h)
    tl.store(p_gates + 4 * CHUNK, tl.exp2(b_hi + b_lo), mask=m_h)


_launch_prepare = Launcher(_prepare)


def prepare(operands: Operands, chunks: Chunks, chunk: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the preparation, with `chunk` tokens per chunk.

    Returns:
        The products [chunks, G, chunk, chunk]: row j and column i have q_i . k_j, or 0 for i < j. And the
        gates [chunks, H, 5, chunk] float32, five numbers per token: w; the running sum of log2 decays, each
        rounded down to a multiple of 2^-10; the running sum of the remainders; w times the decay to the
        chunk's end; the decay from the chunk's start.
    """
    count = chunks.blocks.shape[0]
    heads, group, key_size, _ = operands.sizes
    groups = heads // group
    # float16 would overflow on products of large inputs, even where gates make the products small again.
    dtype = torch.bfloat16 if operands.k.dtype == torch.bfloat16 else torch.float32
    scores = scratch((count, groups, chunk, chunk), dtype, operands.k.device)
    gates = scratch((count, heads, 5, chunk), torch.float32, operands.k.device)
    _, has_bias, softplus, _ = operands.flags
    _launch_prepare(
        (count, groups, 1),
        (operands.q, operands.k, operands.rate, operands.dt, operands.bias, scores, gates, chunks.blocks),
        (*operands.limits, *operands.dt_strides, *operands.q.stride()[:2], *operands.k.stride()[:2]),
        (groups, group, padded(group), key_size, padded(key_size, 16), chunk, has_bias, softplus),
        num_warps=4,
        **launch_options(operands.k.dtype),
    )
    return scores, gates
