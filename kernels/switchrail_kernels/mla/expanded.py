"""Attention to keys and values that are first expanded from latents, for sequences with many rows.

R is the size of a latent, E that of the rotary part, D that of an expanded key without its rotary part, and V
that of a value. Per row, key and head, attention to latents takes R + E multiplications for the logit and R
for the sum. Attention to expanded keys and values takes D + E for the logit and V for the sum, usually less
than a third as many. Expansion takes R (D + V) multiplications per key and head, once for all rows.

Keys are expanded in rounds, each with as many keys as fit in the buffer. If a sequence's keys take several
rounds, each round continues the softmax of the round before.
"""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from switchrail_kernels.constants import LN2
from switchrail_kernels.launch import TABLES, Launcher
from switchrail_kernels.softmax import add_keys


@triton.jit(do_not_specialize=["s_pages", "C"], do_not_specialize_on_alignment=TABLES)
def _expand(
    p_cache, p_w_k, p_w_v, p_keys, p_rotated, p_values, p_spans, p_pages,
    s_kh, s_kd, s_vh, s_vd, s_pages,
    C,
    R: tl.constexpr, E: tl.constexpr, BE: tl.constexpr, D: tl.constexpr, V: tl.constexpr, BC: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, PAGE: tl.constexpr, STAGES: tl.constexpr, S_P: tl.constexpr,
    S_T: tl.constexpr,
):  # fmt: skip
    """Expand up to `BC` latents of one sequence into `BN` columns of one head's keys or values.

    For each span of latents, one program also copies the rotary parts.
    """
    p_spans += 4 * tl.program_id(1)
    i_n = tl.load(p_spans)
    start = tl.load(p_spans + 1)
    row = tl.load(p_spans + 2).to(tl.int64)
    rows = tl.load(p_spans + 3)
    i_h = tl.program_id(0) // (tl.cdiv(D, BN) + tl.cdiv(V, BN))
    i_b = tl.program_id(0) % (tl.cdiv(D, BN) + tl.cdiv(V, BN))

    L: tl.constexpr = R + E
    o_c = tl.arange(0, BC)
    o_k = tl.arange(0, BK)
    o_seen = start + tl.minimum(o_c, rows - 1)
    page = tl.load(p_pages + i_n.to(tl.int64) * s_pages + o_seen // PAGE).to(tl.int64)
    if S_T == 0:
        p_token = p_cache + ((page * PAGE + o_seen % PAGE) * L)[:, None]
    else:  # a cache with gaps
        p_token = p_cache + (page * S_P + (o_seen % PAGE).to(tl.int64) * S_T)[:, None]
    is_key = i_b < tl.cdiv(D, BN)
    p_w = tl.where(is_key, p_w_k + i_h.to(tl.int64) * s_kh, p_w_v + i_h.to(tl.int64) * s_vh)
    s_w = tl.where(is_key, s_kd, s_vd)
    width = tl.where(is_key, D, V)
    p_out = tl.where(is_key, p_keys, p_values)
    o_n = tl.where(is_key, i_b, i_b - tl.cdiv(D, BN)) * BN + tl.arange(0, BN)
    p_w += o_n[None, :] * s_w
    b_acc = tl.zeros((BC, BN), tl.float32)
    for i_k in tl.range(0, R, BK, num_stages=STAGES):
        if R % BK == 0:
            b_c = tl.load(p_token + (i_k + o_k)[None, :])
            b_w = tl.load(p_w + (i_k + o_k)[:, None], mask=(o_n < width)[None, :], other=0.0)
        else:
            m_k = o_k < R - i_k
            b_c = tl.load(p_token + (i_k + o_k)[None, :], mask=m_k[None, :], other=0.0)
            b_w = tl.load(p_w + (i_k + o_k)[:, None], mask=m_k[:, None] & (o_n < width)[None, :], other=0.0)
        b_acc = tl.dot(b_c, b_w, acc=b_acc, input_precision="ieee")
    m_c = o_c < rows
    o_out = ((i_h.to(tl.int64) * C + row + o_c) * width)[:, None] + o_n[None, :]
    tl.store(p_out + o_out, b_acc.to(p_out.dtype.element_ty), mask=m_c[:, None] & (o_n < width)[None, :])
    if tl.program_id(0) == 0:
        o_e = tl.arange(0, BE)
        m_e = m_c[:, None] & (o_e < E)[None, :]
        b_r = tl.load(p_token + (R + o_e)[None, :], mask=m_e, other=0.0)
        tl.store(p_rotated + (row + o_c)[:, None] * E + o_e[None, :], b_r, mask=m_e)


@triton.jit
def _walk(
    b_plain, b_rotated, b_acc, b_max, b_sum,
    p_keys, p_rotated, p_values,
    o_last, start, stop, scale,
    D: tl.constexpr, BD: tl.constexpr, E: tl.constexpr, BE: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
    BN: tl.constexpr, MASKED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Attend to keys `start` to `stop - 1`. Without MASKED, all rows attend to all these keys."""
    o_d = tl.arange(0, BD)
    o_e = tl.arange(0, BE)
    o_v = tl.arange(0, BV)
    for i_start in tl.range(start, stop, BN, num_stages=STAGES):
        o_n = i_start + tl.arange(0, BN)
        m_n = (o_n < stop)[:, None]
        if MASKED or D != BD:
            b_k = tl.load(p_keys + o_n[:, None] * D + o_d[None, :], mask=m_n & (o_d < D)[None, :], other=0.0)
        else:
            b_k = tl.load(p_keys + o_n[:, None] * D + o_d[None, :])
        if MASKED or E != BE:
            b_r = tl.load(
                p_rotated + o_n[:, None] * E + o_e[None, :], mask=m_n & (o_e < E)[None, :], other=0.0
            )
        else:
            b_r = tl.load(p_rotated + o_n[:, None] * E + o_e[None, :])
        if MASKED or V != BV:
            b_v = tl.load(
                p_values + o_n[:, None] * V + o_v[None, :], mask=m_n & (o_v < V)[None, :], other=0.0
            )
        else:
            b_v = tl.load(p_values + o_n[:, None] * V + o_v[None, :])
        b_s = tl.dot(b_plain, tl.trans(b_k), input_precision="ieee")
        b_s = tl.dot(b_rotated, tl.trans(b_r), acc=b_s, input_precision="ieee")
        if MASKED:
            m_seen = (o_last[:, None] >= o_n[None, :]) & (o_n < stop)[None, :]
            b_s = tl.where(m_seen, b_s, float("-inf"))
        b_acc, b_max, b_sum = add_keys(b_acc, b_max, b_sum, b_s, b_v, scale, MASKED)
    return b_acc, b_max, b_sum


@triton.jit(do_not_specialize=["C"], do_not_specialize_on_alignment=TABLES)
def _attend(
    p_plain, p_rotated, p_keys, p_keys_rotated, p_values, p_out, p_lse, p_carried, p_weights, p_items,
    scale,
    s_pt, s_ph, s_rt, s_rh,
    C,
    D: tl.constexpr, BD: tl.constexpr, E: tl.constexpr, BE: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
    BT: tl.constexpr, BN: tl.constexpr, NEGATED: tl.constexpr, CARRIED: tl.constexpr, LSE: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the attention of up to `BT` rows of one head to their sequence's keys in this round.

    `p_items` is `Round.items`.
    """
    i_h = tl.program_id(1)
    H = tl.num_programs(1)
    p_items += 8 * tl.program_id(0)
    row = tl.load(p_items).to(tl.int64)
    rows = tl.load(p_items + 1)
    base = tl.load(p_items + 2).to(tl.int64)
    whole = tl.load(p_items + 3)
    stop = tl.load(p_items + 4)
    o_t = tl.arange(0, BT)
    o_d = tl.arange(0, BD)
    o_e = tl.arange(0, BE)
    o_v = tl.arange(0, BV)
    m_t = o_t < rows
    o_plain = ((row + o_t) * s_pt + i_h.to(tl.int64) * s_ph)[:, None] + o_d[None, :]
    b_plain = tl.load(p_plain + o_plain, mask=m_t[:, None] & (o_d < D)[None, :], other=0.0)
    o_rotated = ((row + o_t) * s_rt + i_h.to(tl.int64) * s_rh)[:, None] + o_e[None, :]
    b_rotated = tl.load(p_rotated + o_rotated, mask=m_t[:, None] & (o_e < E)[None, :], other=0.0)
    if NEGATED:
        b_plain = -b_plain
        b_rotated = -b_rotated
    o_out = (row + o_t) * H + i_h
    m_out = m_t[:, None] & (o_v < V)[None, :]
    if CARRIED:
        m_first = m_t & (o_t < tl.where(tl.load(p_items + 5) != 0, 0, BT))
        b_max = tl.load(p_weights + o_out, mask=m_first, other=float("-inf"))
        m_acc = m_out & (b_max > float("-inf"))[:, None]
        b_acc = tl.load(p_carried + o_out[:, None] * V + o_v[None, :], mask=m_acc, other=0.0)
        b_sum = tl.where(b_max > float("-inf"), 1.0, 0.0)
    else:
        b_max = tl.full((BT,), float("-inf"), tl.float32)
        b_acc = tl.zeros((BT, BV), tl.float32)
        b_sum = tl.zeros((BT,), tl.float32)
    p_keys += (i_h.to(tl.int64) * C + base) * D
    p_values += (i_h.to(tl.int64) * C + base) * V
    p_keys_rotated += base * E
    o_last = whole - 1 + tl.minimum(o_t, rows - 1)
    middle = tl.maximum(tl.minimum(whole, stop), 0) // BN * BN
    b_acc, b_max, b_sum = _walk(
        b_plain, b_rotated, b_acc, b_max, b_sum, p_keys, p_keys_rotated, p_values, o_last, 0, middle, scale,
        D, BD, E, BE, V, BV, BN, False, STAGES,
    )  # fmt: skip
    b_acc, b_max, b_sum = _walk(
        b_plain, b_rotated, b_acc, b_max, b_sum, p_keys, p_keys_rotated, p_values, o_last, middle, stop,
        scale, D, BD, E, BE, V, BV, BN, True, STAGES,
    )  # fmt: skip
    b_acc = b_acc / tl.where(b_sum > 0, b_sum, 1.0)[:, None]
    b_total = b_max + tl.log2(b_sum)
    if CARRIED and tl.load(p_items + 6) == 0:  # more keys follow in a later round
        tl.store(p_carried + o_out[:, None] * V + o_v[None, :], b_acc, mask=m_out)
        tl.store(p_weights + o_out, b_total, mask=m_t)
        return
    tl.store(p_out + o_out[:, None] * V + o_v[None, :], b_acc.to(p_out.dtype.element_ty), mask=m_out)
    if LSE:
        tl.store(p_lse + o_out, b_total * LN2, mask=m_t)


launch_expand = Launcher(_expand)
launch_attend = Launcher(_attend)
