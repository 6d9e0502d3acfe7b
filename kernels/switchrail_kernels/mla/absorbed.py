"""Attention to latents in a paged cache, and the merge of its partial results, for every phase.

The queries are multiplied beforehand by w_k, which maps latents to keys. So all heads share a token's key
[c, r] (latent and rotary part) and value c. A program computes heads of one token, or all heads of several
tokens.
"""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN201, ANN202, SIM102
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from switchrail_kernels.constants import LN2
from switchrail_kernels.launch import TABLES, Launcher
from switchrail_kernels.mla.plan import LEAST, LONG
from switchrail_kernels.softmax import add_keys, add_parts, find_rows, seen_by

_LEAST = tl.constexpr(LEAST)
_LONG = tl.constexpr(LONG)


@triton.jit
def _piece_length(keys, base, most, BN: tl.constexpr):
    """The length of a piece, a multiple of BN, if `keys` keys are split into `CacheSplit.pieces` pieces."""
    pieces = tl.minimum(tl.cdiv(keys, _LEAST), base * tl.cdiv(keys, base * _LONG))
    pieces = tl.maximum(tl.minimum(pieces, most), 1)
    return tl.maximum(tl.cdiv(tl.cdiv(keys, pieces), BN), 1) * BN


@triton.jit
def find_piece(p_items, keys, base, most, BN: tl.constexpr, DECODE: tl.constexpr):
    """The index of this program's piece of `keys` keys, the number of pieces, and the length of a piece."""
    if DECODE:
        i_p = tl.program_id(1)
        length = _piece_length(keys, base, most, BN)
        pieces = tl.maximum(tl.cdiv(keys, length), 1)
    else:
        i_p = tl.load(p_items + 4)
        pieces = tl.load(p_items + 5)
        length = tl.maximum(tl.cdiv(tl.cdiv(keys, pieces), BN), 1) * BN
    return i_p, pieces, length


@triton.jit
def _walk(
    b_plain, b_low, b_rotated, b_acc, b_max, b_sum,
    p_plain, p_cache, p_pages, p_parents,
    o_row, m_row, o_v, start, stop, past, scale,
    R: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, E: tl.constexpr, BE: tl.constexpr, BN: tl.constexpr,
    PAGE: tl.constexpr, PARTS: tl.constexpr, TREES: tl.constexpr, STAGES: tl.constexpr,
    S_P: tl.constexpr, S_T: tl.constexpr,
):  # fmt: skip
    """Attends to keys `start` to `stop - 1`."""
    L: tl.constexpr = R + E
    o_c = tl.arange(0, BK)
    o_e = tl.arange(0, BE)
    for i_start in tl.range(start, stop, BN, num_stages=STAGES):
        o_n = i_start + tl.arange(0, BN)
        # Memory past the last key may hold NaN, so positions from `stop` on load key `stop - 1`.
        o_seen = tl.minimum(o_n, stop - 1)
        page = tl.load(p_pages + o_seen // PAGE).to(tl.int64)
        if S_T == 0:
            p_token = p_cache + ((page * PAGE + o_seen % PAGE) * L)[:, None]
        else:  # a cache with gaps
            p_token = p_cache + (page * S_P + (o_seen % PAGE).to(tl.int64) * S_T)[:, None]
        if BK == BR:
            if R == BR:
                b_c = tl.load(p_token + o_c[None, :])
            else:
                b_c = tl.load(p_token + o_c[None, :], mask=(o_c < R)[None, :], other=0.0)
            b_s = tl.dot(b_plain, tl.trans(b_c), input_precision="ieee")
            if PARTS == 2:
                b_s = tl.dot(b_low, tl.trans(b_c), acc=b_s, input_precision="ieee")
        else:
            b_s = tl.zeros((o_row.shape[0], BN), tl.float32)
            for i_c in range(0, R, BK):
                m_c = (o_c < R - i_c)[None, :]
                b_part = tl.load(p_plain + i_c, mask=m_row[:, None] & m_c, other=0.0)
                b_c = tl.load(p_token + (i_c + o_c)[None, :], mask=m_c, other=0.0)
                b_s = tl.dot(b_part, tl.trans(b_c), acc=b_s, input_precision="ieee")
            b_c = tl.load(p_token + o_v[None, :], mask=(o_v < R)[None, :], other=0.0)
        if E == BE:
            b_r = tl.load(p_token + (R + o_e)[None, :])
        else:
            b_r = tl.load(p_token + (R + o_e)[None, :], mask=(o_e < E)[None, :], other=0.0)
        b_s = tl.dot(b_rotated, tl.trans(b_r), acc=b_s, input_precision="ieee") * scale
        o_key = o_n - past
        m_seen = seen_by(o_row, o_key, i_start - past, p_parents, TREES)
        b_s = tl.where(m_seen, b_s, float("-inf"))
        b_acc, b_max, b_sum = add_keys(b_acc, b_max, b_sum, b_s, b_c, 1.0, True)
    return b_acc, b_max, b_sum


@triton.jit(do_not_specialize=["s_pages", "H", "base", "most"], do_not_specialize_on_alignment=TABLES)
def _attend(
    p_plain, p_rotated, p_cache, p_out, p_lse, p_parts, p_weights, p_items, p_cu_seqlens, p_parents, p_pages,
    p_kv_lens,
    scale,
    s_pt, s_ph, s_rt, s_rh, s_pages,
    H, base, most,
    BG: tl.constexpr, BT: tl.constexpr, R: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr,
    BV: tl.constexpr, E: tl.constexpr, BE: tl.constexpr, BN: tl.constexpr, PAGE: tl.constexpr,
    PARTS: tl.constexpr, DECODE: tl.constexpr, TREES: tl.constexpr, LSE: tl.constexpr, STAGES: tl.constexpr,
    S_P: tl.constexpr, S_T: tl.constexpr,
):  # fmt: skip
    """Computes the attention of one tile of rows to one piece of its keys, for `BV` columns of the values.

    If PARTS is 2, a query is the sum of two parts; the second part is stored H heads after the first.

    If BK is less than BR (only in float32), the logits are summed over blocks of BK columns, and the queries
    are read again for each block of keys, because the registers can't hold whole queries.
    """
    i_tile = tl.program_id(0) // tl.cdiv(H, BG)
    i_h = tl.program_id(0) % tl.cdiv(H, BG)
    i_v = tl.program_id(2)
    p_items, i_n, within, row, rows, at, kv_len, past = find_rows(
        p_items, i_tile, p_cu_seqlens, p_kv_lens, DECODE
    )
    stop = tl.where(kv_len > 0, past + within + rows, 0)
    i_p, pieces, length = find_piece(p_items, stop, base, most, BN, DECODE)
    if DECODE:
        if i_p >= pieces:
            return
    start = i_p * length
    stop = tl.minimum(start + length, stop)

    o_m = tl.arange(0, BT * BG)
    o_t = o_m // BG
    o_h = i_h * BG + o_m % BG
    o_c = tl.arange(0, BK)
    o_v = i_v * BV + tl.arange(0, BV)
    o_e = tl.arange(0, BE)
    m_row = (o_t < rows) & (o_h < H)
    o_row = within + tl.minimum(o_t, rows - 1)
    p_plain += ((at + o_t) * s_pt + o_h.to(tl.int64) * s_ph)[:, None] + o_c[None, :]
    o_rotated = ((row + o_t) * s_rt + o_h.to(tl.int64) * s_rh)[:, None] + o_e[None, :]
    b_rotated = tl.load(p_rotated + o_rotated, mask=m_row[:, None] & (o_e < E)[None, :], other=0.0)
    b_plain = b_rotated
    b_low = b_rotated
    if BK == BR:
        m_plain = m_row[:, None] & (o_c < R)[None, :]
        b_plain = tl.load(p_plain, mask=m_plain, other=0.0)
        if PARTS == 2:
            b_low = tl.load(p_plain + H * s_ph, mask=m_plain, other=0.0)
    p_pages += i_n.to(tl.int64) * s_pages
    if TREES:
        p_parents += row - within

    b_acc = tl.zeros((BT * BG, BV), tl.float32)
    b_max = tl.full((BT * BG,), float("-inf"), tl.float32)
    b_sum = tl.zeros((BT * BG,), tl.float32)
    middle = start
    if TREES:
        middle = tl.minimum(tl.maximum(past // BN * BN, start), stop)
        b_acc, b_max, b_sum = _walk(
            b_plain, b_low, b_rotated, b_acc, b_max, b_sum, p_plain, p_cache, p_pages, p_parents, o_row,
            m_row, o_v, start, middle, past, scale, R, BR, BK, E, BE, BN, PAGE, PARTS, False, STAGES,
            S_P, S_T,
        )  # fmt: skip
    b_acc, b_max, b_sum = _walk(
        b_plain, b_low, b_rotated, b_acc, b_max, b_sum, p_plain, p_cache, p_pages, p_parents, o_row,
        m_row, o_v, middle, stop, past, scale, R, BR, BK, E, BE, BN, PAGE, PARTS, TREES, STAGES,
        S_P, S_T,
    )  # fmt: skip
    b_acc = b_acc / tl.where(b_sum > 0, b_sum, 1.0)[:, None]  # zeros for padding, which has no keys
    b_total = b_max + tl.log2(b_sum)
    m_out = m_row[:, None] & (o_v < R)[None, :]
    m_once = (o_t < rows) & (o_h < tl.where(i_v == 0, H, 0))
    if pieces > 1:
        slot = row * most + i_p
        if not DECODE:
            slot = tl.load(p_items + 6).to(tl.int64) + i_p * rows
        o_part = (slot + o_t) * H + o_h
        tl.store(p_parts + o_part[:, None] * R + o_v[None, :], b_acc, mask=m_out)
        tl.store(p_weights + o_part, b_total, mask=m_once)
        return
    o_out = (at + o_t) * H + o_h
    tl.store(p_out + o_out[:, None] * R + o_v[None, :], b_acc.to(p_out.dtype.element_ty), mask=m_out)
    if LSE:
        tl.store(p_lse + (row + o_t) * H + o_h, b_total * LN2, mask=m_once)


@triton.jit(do_not_specialize=["H", "base", "most"], do_not_specialize_on_alignment=TABLES)
def _merge(
    p_parts, p_weights, p_out, p_lse, p_rows, p_kv_lens,
    H, base, most,
    R: tl.constexpr, BC: tl.constexpr, BN: tl.constexpr, BP: tl.constexpr, DECODE: tl.constexpr,
    LSE: tl.constexpr,
):  # fmt: skip
    """Combines the partial results of one row of one head, for `BC` columns."""
    i_h = tl.program_id(1)
    if DECODE:
        row = tl.program_id(0).to(tl.int64)
        at = row
        slot = row * most
        step = 1
        kv_len = tl.load(p_kv_lens + row)
        pieces = tl.cdiv(kv_len, _piece_length(kv_len, base, most, BN))
        if pieces <= 1:
            return
    else:
        p_rows += 8 * tl.program_id(0)
        row = tl.load(p_rows).to(tl.int64)
        slot = tl.load(p_rows + 1).to(tl.int64)
        step = tl.load(p_rows + 2)
        pieces = tl.load(p_rows + 3)
        at = tl.load(p_rows + 4).to(tl.int64)
    o_c = tl.program_id(2) * BC + tl.arange(0, BC)
    b_acc = tl.zeros((BC,), tl.float32)
    b_max = float("-inf")
    b_sum = 0.0
    for i_start in range(0, pieces, BP):
        o_p = i_start + tl.arange(0, BP)
        o_part = (slot + o_p.to(tl.int64) * step) * H + i_h
        b_weight = tl.load(p_weights + o_part, mask=o_p < pieces, other=float("-inf"))
        m_part = (b_weight > float("-inf"))[:, None] & (o_c < R)[None, :]
        b_part = tl.load(p_parts + o_part[:, None] * R + o_c[None, :], mask=m_part, other=0.0)
        b_acc, b_max, b_sum = add_parts(b_acc, b_max, b_sum, b_part, b_weight)
    b_acc = b_acc / tl.where(b_sum > 0, b_sum, 1.0)
    tl.store(p_out + (at * H + i_h) * R + o_c, b_acc.to(p_out.dtype.element_ty), mask=o_c < R)
    if LSE and tl.program_id(2) == 0:
        tl.store(p_lse + row * H + i_h, (b_max + tl.log2(b_sum)) * LN2)


launch_attend = Launcher(_attend)
launch_merge = Launcher(_merge)
