"""The ends of paged softmax attention: parts weighed by their log-sum-exp, sinks, and what is written."""

# Triton reads the types of a kernel's arguments at the call.
# ruff: noqa: ANN001, ANN201, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from switchrail_kernels.launch import Launcher

MOST = 128
"""Parts of a row at most."""

_MOST = tl.constexpr(MOST)
_LN2 = tl.constexpr(0.6931471805599453)
_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def finish(
    b_acc, b_total, p_out, p_lse, p_sinks, o_out, o_head, m_row, D: tl.constexpr, BD: tl.constexpr,
    SINKS: tl.constexpr, LSE: tl.constexpr,
):  # fmt: skip
    """Writes rows whose log-sum-exp without a sink, in powers of 2, is `b_total`; -inf: they see no key."""
    if SINKS:
        b_sink = tl.load(p_sinks + o_head, mask=m_row, other=0.0).to(tl.float32) * _LOG2E
        b_ref = tl.maximum(b_total, b_sink)
        b_ref = tl.where(b_ref == float("-inf"), 0.0, b_ref)
        b_with = b_ref + tl.log2(tl.exp2(b_total - b_ref) + tl.exp2(b_sink - b_ref))
        b_with = tl.where(b_total == float("-inf"), float("-inf"), b_with)
        b_acc *= tl.where(b_total == float("-inf"), 0.0, tl.exp2(b_total - b_with))[:, None]
        b_total = b_with
    o_d = tl.arange(0, BD)
    m_out = m_row[:, None] & (o_d < D)[None, :]
    tl.store(p_out + o_out[:, None] * D + o_d[None, :], b_acc.to(p_out.dtype.element_ty), mask=m_out)
    if LSE:
        tl.store(p_lse + o_out, b_total * _LN2, mask=m_row)


@triton.jit
def merge(
    p_parts, p_weights, p_out, p_lse, p_sinks, row, i_h, slot, step, pieces, HKV, GROUP: tl.constexpr,
    MG: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, SINKS: tl.constexpr, LSE: tl.constexpr,
):  # fmt: skip
    """Writes one token's rows from `pieces` parts, in slots from `slot` on, `step` apart."""
    o_g = tl.arange(0, MG)
    o_d = tl.arange(0, BD)
    o_head = i_h * GROUP + o_g
    o_all = tl.arange(0, _MOST)
    m_all = (o_all < pieces)[:, None] & (o_g < GROUP)[None, :]
    o_all = (slot + o_all.to(tl.int64) * step)[:, None] * (HKV * GROUP) + o_head[None, :]
    b_all = tl.load(p_weights + o_all, mask=m_all, other=float("-inf"), cache_modifier=".cg")
    b_max = tl.max(b_all, 0)
    b_max = tl.where(b_max == float("-inf"), 0.0, b_max)
    b_sum = tl.sum(tl.exp2(b_all - b_max[None, :]), 0)
    b_acc = tl.zeros((MG, BD), tl.float32)
    for i_start in range(0, pieces, 8):
        o_p = i_start + tl.arange(0, 8)
        o_part = (slot + o_p.to(tl.int64) * step)[:, None] * (HKV * GROUP) + o_head[None, :]
        m_part = (o_p < pieces)[:, None] & (o_g < GROUP)[None, :]
        b_weight = tl.load(p_weights + o_part, mask=m_part, other=float("-inf"), cache_modifier=".cg")
        m_load = m_part[:, :, None] & (o_d < D)[None, None, :]
        o_load = o_part[:, :, None] * D + o_d[None, None, :]
        b_part = tl.load(p_parts + o_load, mask=m_load, other=0.0, cache_modifier=".cg")
        b_acc += tl.sum(b_part * tl.exp2(b_weight - b_max[None, :])[:, :, None], 0)
    b_acc = b_acc / tl.where(b_sum > 0, b_sum, 1.0)[:, None]
    o_out = row.to(tl.int64) * (HKV * GROUP) + o_head
    finish(
        b_acc, b_max + tl.log2(b_sum), p_out, p_lse, p_sinks, o_out, o_head, o_g < GROUP, D, BD, SINKS, LSE
    )


@triton.jit
def _combine(
    p_parts,
    p_weights,
    p_out,
    p_lse,
    p_sinks,
    p_rows,
    HKV,
    GROUP: tl.constexpr,
    MG: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    SINKS: tl.constexpr,
    LSE: tl.constexpr,
):
    p_rows += 4 * tl.program_id(0)
    row = tl.load(p_rows)
    slot = tl.load(p_rows + 1).to(tl.int64)
    step = tl.load(p_rows + 2)
    pieces = tl.load(p_rows + 3)
    merge(
        p_parts, p_weights, p_out, p_lse, p_sinks, row, tl.program_id(1), slot, step, pieces, HKV, GROUP, MG,
        D, BD, SINKS, LSE,
    )  # fmt: skip


launch_combine = Launcher(_combine)

__all__ = ["MOST", "finish", "launch_combine", "merge"]
