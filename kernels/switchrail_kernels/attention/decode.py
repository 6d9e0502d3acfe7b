"""The kernel of decode: one token a sequence, its keys cut into pieces.

The scores are computed transposed, keys times query heads, so that few heads waste no rows of a product of
matrices. The last program of a sequence to be done merges the pieces, always in their order.
"""

# Triton reads the types of a kernel's arguments at the call.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from switchrail_kernels.attention.merge import finish, merge
from switchrail_kernels.launch import Launcher

PIECE = 256
"""Keys of a piece at least."""

MAX_PIECES = 64
"""Pieces of a cache at most."""

_PIECE = tl.constexpr(PIECE)
_MAX_PIECES = tl.constexpr(MAX_PIECES)


@triton.jit
def _decode(
    p_q,
    p_k,
    p_v,
    p_out,
    p_lse,
    p_sinks,
    p_parts,
    p_weights,
    p_done,
    p_pages,
    p_kv_lens,
    scale,
    cap,
    window,
    s_qt,
    s_qh,
    s_pages,
    HKV,
    GROUP: tl.constexpr,
    MG: tl.constexpr,
    BG: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    BN: tl.constexpr,
    PAGE: tl.constexpr,
    SPLIT: tl.constexpr,
    NEGATED: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    SINKS: tl.constexpr,
    LSE: tl.constexpr,
    STAGES: tl.constexpr,
):
    i_n = tl.program_id(0)
    i_h = tl.program_id(1)
    row = i_n.to(tl.int64)
    stop = tl.load(p_kv_lens + i_n)
    first = 0
    if WINDOW:
        first = tl.maximum(stop - window, 0)
    start = first // BN * BN
    if SPLIT:
        i_p = tl.program_id(2)
        length = tl.maximum(tl.cdiv(stop - start, _MAX_PIECES * BN) * BN, _PIECE)
        pieces = tl.maximum(tl.cdiv(stop - start, length), 1)
        if i_p >= pieces:
            return
        start += i_p * length
        stop = tl.minimum(start + length, stop)

    o_g = tl.arange(0, BG)
    o_d = tl.arange(0, BD)
    o_head = i_h * GROUP + o_g
    m_row = o_g < GROUP
    m_q = m_row[None, :] & (o_d < D)[:, None]
    b_q = tl.load(p_q + row * s_qt + o_head[None, :] * s_qh + o_d[:, None], mask=m_q, other=0.0)
    if NEGATED:
        b_q = -b_q
    b_acc = tl.zeros((BD, BG), tl.float32)
    b_max = tl.full((BG,), float("-inf"), tl.float32)
    b_sum = tl.zeros((BG,), tl.float32)
    p_k += i_h * D
    p_v += i_h * D
    p_pages += row * s_pages
    s_token = HKV * D
    for i_start in tl.range(start, stop, BN, num_stages=STAGES):
        o_n = i_start + tl.arange(0, BN)
        m_kv = o_n < stop
        if WINDOW:
            m_kv &= o_n >= first
        if PAGE % BN == 0:
            page = tl.load(p_pages + i_start // PAGE).to(tl.int64)
            o_token = page * PAGE + (i_start % PAGE + tl.arange(0, BN))
        else:
            o_token = tl.load(p_pages + o_n // PAGE, mask=m_kv, other=0).to(tl.int64) * PAGE + o_n % PAGE
        o_kv = o_token[:, None] * s_token + o_d[None, :]
        m_load = m_kv[:, None] & (o_d < D)[None, :]
        b_k = tl.load(p_k + o_kv, mask=m_load, other=0.0)
        b_v = tl.load(p_v + o_kv, mask=m_load, other=0.0)
        b_s = tl.dot(b_k, b_q, input_precision="ieee")
        if CAP:
            b_s = cap - 2 * cap / (1 + tl.exp2(b_s * scale))
            unit = 1.0
        else:
            unit = scale
        b_s = tl.where(m_kv[:, None], b_s, float("-inf"))
        b_new = tl.maximum(b_max, tl.max(b_s, 0) * unit)
        b_p = tl.exp2(b_s * unit - b_new[None, :])
        b_scale = tl.exp2(b_max - b_new)
        b_sum = b_sum * b_scale + tl.sum(b_p, 0)
        b_acc *= b_scale[None, :]
        b_acc = tl.dot(tl.trans(b_v), b_p.to(b_v.dtype), acc=b_acc, input_precision="ieee")
        b_max = b_new
    b_acc = tl.trans(b_acc / tl.where(b_sum > 0, b_sum, 1.0)[None, :])  # padding sees no key: zeros
    b_total = b_max + tl.log2(b_sum)

    if SPLIT:
        slot = row * tl.num_programs(2)
        o_part = (slot + i_p) * (HKV * GROUP) + o_head
        m_part = m_row[:, None] & (o_d < D)[None, :]
        tl.store(p_parts + o_part[:, None] * D + o_d[None, :], b_acc, mask=m_part)
        tl.store(p_weights + o_part, b_total, mask=m_row)
        p_done += i_n * HKV + i_h
        tl.debug_barrier()
        if tl.atomic_add(p_done, 1, sem="acq_rel") == pieces - 1:
            tl.debug_barrier()
            merge(
                p_parts, p_weights, p_out, p_lse, p_sinks, row, i_h, slot, 1, pieces, HKV, GROUP, MG, D, BD,
                SINKS, LSE,
            )  # fmt: skip
            tl.store(p_done, 0)  # for the next launch
    else:
        o_out = row * (HKV * GROUP) + o_head
        finish(b_acc, b_total, p_out, p_lse, p_sinks, o_out, o_head, m_row, D, BD, SINKS, LSE)


launch_decode = Launcher(_decode)

__all__ = ["MAX_PIECES", "PIECE", "launch_decode"]
