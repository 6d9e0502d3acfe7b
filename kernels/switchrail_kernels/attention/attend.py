"""The kernel that attends to the paged cache, in every phase.

A program computes a few tokens of all query heads that share a key-value head, and reads their keys and
values once. If few rows attend to many keys, the keys are split into pieces with one program each. The code
of a feature, for example of the window, is compiled in only if the layer uses it.
"""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN202, SIM102
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from switchrail_kernels.attention.merge import finish, piece_length
from switchrail_kernels.constants import LOG2E
from switchrail_kernels.dependent import wait
from switchrail_kernels.launch import TABLES, Launcher
from switchrail_kernels.softmax import add_keys, find_rows, seen_by


@triton.jit
def _capped(b_z, cap):
    """Compute cap tanh(z). For small z a series is used, since the quotient would lose digits."""
    b_square = b_z * b_z
    b_near = b_z * (1 - b_square * (1 / 3 - b_square * (2 / 15)))
    return cap * tl.where(b_square < 0.01, b_near, 1 - 2 / (1 + tl.exp2(b_z * (2 * LOG2E))))


@triton.jit
def _walk(
    b_q, b_acc, b_max, b_sum,
    p_k, p_v, p_pages, p_parents,
    o_row, start, full, middle, stop, first, past, scale, cap, window,
    s_token,
    D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr,
    CAP: tl.constexpr, TREES: tl.constexpr, MASKED: tl.constexpr, STAGES: tl.constexpr,
    S_KP: tl.constexpr, S_KT: tl.constexpr, S_VP: tl.constexpr, S_VT: tl.constexpr,
):  # fmt: skip
    """Attend to keys `start` to `stop - 1`. With MASKED, only keys `full` to `middle - 1` need no mask."""
    o_d = tl.arange(0, BD)
    for i_start in tl.range(start, stop, BN, num_stages=STAGES):
        o_n = i_start + tl.arange(0, BN)
        m_kv = o_n < stop
        if WINDOW:
            m_kv &= o_n >= first
        if S_KT != 0:  # caches with gaps
            if PAGE % BN == 0:
                page = tl.load(p_pages + i_start // PAGE).to(tl.int64)
                o_in = (i_start % PAGE + tl.arange(0, BN)).to(tl.int64)
                p_block_k = p_k + page * S_KP
                p_block_v = p_v + page * S_VP
                o_kv = o_in[:, None] * S_KT + o_d[None, :]
                o_v = o_in[:, None] * S_VT + o_d[None, :]
            else:
                o_page = tl.load(p_pages + o_n // PAGE, mask=m_kv, other=0).to(tl.int64)
                p_block_k = p_k
                p_block_v = p_v
                o_in = (o_n % PAGE).to(tl.int64)
                o_kv = (o_page * S_KP + o_in * S_KT)[:, None] + o_d[None, :]
                o_v = (o_page * S_VP + o_in * S_VT)[:, None] + o_d[None, :]
        elif PAGE % BN == 0:
            page = tl.load(p_pages + i_start // PAGE).to(tl.int64)
            o_first = (page * PAGE + i_start % PAGE) * s_token
            o_kv = tl.arange(0, BN)[:, None] * s_token + o_d[None, :]
            o_v = o_kv
            p_block_k = p_k + o_first
            p_block_v = p_v + o_first
        else:
            o_token = tl.load(p_pages + o_n // PAGE, mask=m_kv, other=0).to(tl.int64) * PAGE + o_n % PAGE
            o_first = 0
            o_kv = o_token[:, None] * s_token + o_d[None, :]
            o_v = o_kv
            p_block_k = p_k + o_first
            p_block_v = p_v + o_first
        if D != BD or (MASKED and PAGE % BN != 0):
            b_k = tl.load(p_block_k + o_kv, mask=m_kv[:, None] & (o_d < D)[None, :], other=0.0)
        else:  # needs no mask: logits of keys that a row does not attend to become -inf below
            b_k = tl.load(p_block_k + o_kv)
        if D != BD or MASKED:
            b_v = tl.load(p_block_v + o_v, mask=m_kv[:, None] & (o_d < D)[None, :], other=0.0)
        else:
            b_v = tl.load(p_block_v + o_v)
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee")
        if CAP:
            b_s = _capped(b_s * scale, cap)
            unit = 1.0
        else:
            unit = scale
        if MASKED:
            if (i_start < full) | (i_start >= middle):
                o_key = o_n - past
                m_seen = seen_by(o_row, o_key, i_start - past, p_parents, TREES)
                if WINDOW:
                    m_seen &= o_row[:, None] - o_key[None, :] < window
                b_s = tl.where(m_seen, b_s, float("-inf"))
        b_acc, b_max, b_sum = add_keys(b_acc, b_max, b_sum, b_s, b_v, unit, MASKED)
    return b_acc, b_max, b_sum


@triton.jit(do_not_specialize=["s_pages"], do_not_specialize_on_alignment=TABLES)
def _attend(
    p_q, p_k, p_v, p_out, p_lse, p_sinks, p_parts, p_weights, p_items, p_cu_seqlens, p_parents, p_pages,
    p_kv_lens,
    scale, cap, window,
    s_qt, s_qh, s_pages,
    HKV, least,
    GROUP: tl.constexpr, BG: tl.constexpr, BT: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
    BN: tl.constexpr, PAGE: tl.constexpr, DECODE: tl.constexpr, SPLIT: tl.constexpr, NEGATED: tl.constexpr,
    WINDOW: tl.constexpr, CAP: tl.constexpr, SINKS: tl.constexpr, LSE: tl.constexpr, TREES: tl.constexpr,
    STAGES: tl.constexpr, S_KP: tl.constexpr, S_KT: tl.constexpr, S_KH: tl.constexpr, S_VP: tl.constexpr,
    S_VT: tl.constexpr, S_VH: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait(EARLY)
    i_h = tl.program_id(1)
    i_p = 0
    pieces = 1
    p_items, i_n, within, row, rows, _, kv_len, past = find_rows(
        p_items, tl.program_id(0), p_cu_seqlens, p_kv_lens, DECODE
    )

    # Find the tile's keys, the piece's keys, and the range of the piece's keys that every row attends to.
    first = 0
    if WINDOW:
        first = tl.maximum(past + within + 1 - window, 0)
    start = first // BN * BN
    stop = tl.where(kv_len > 0, past + within + rows, 0)
    if SPLIT:
        if DECODE:
            i_p = tl.program_id(2)
            length, pieces = piece_length(stop - start, tl.num_programs(2), least, BN)
            if i_p >= pieces:
                return
        else:
            i_p = tl.load(p_items + 4)
            pieces = tl.load(p_items + 5)
            length = tl.cdiv(stop - start, pieces * BN) * BN
        start += i_p * length
        stop = tl.minimum(start + length, stop)
    middle = past if TREES else past + within + 1
    middle = tl.minimum(tl.maximum(middle // BN * BN, start), tl.maximum(stop // BN * BN, start))
    full = start
    if WINDOW:
        full = tl.maximum(tl.cdiv(past + within + rows - window, BN) * BN, start)
        middle = tl.where(full > middle, start, middle)
        full = tl.where(full > middle, start, full)

    o_m = tl.arange(0, BT * BG)
    o_t = o_m // BG
    o_g = o_m % BG
    o_d = tl.arange(0, BD)
    o_row = within + tl.minimum(o_t, rows - 1)
    m_row = (o_t < rows) & (o_g < GROUP)
    m_q = m_row[:, None] & (o_d < D)[None, :]
    o_head = i_h * GROUP + o_g
    o_q = (row + o_t) * s_qt + o_head.to(tl.int64) * s_qh
    b_q = tl.load(p_q + o_q[:, None] + o_d[None, :], mask=m_q, other=0.0)
    if NEGATED:
        b_q = -b_q

    b_acc = tl.zeros((BT * BG, BD), tl.float32)
    b_max = tl.full((BT * BG,), float("-inf"), tl.float32)
    b_sum = tl.zeros((BT * BG,), tl.float32)
    if S_KT == 0:
        p_k += i_h * D
        p_v += i_h * D
    else:
        p_k += i_h.to(tl.int64) * S_KH
        p_v += i_h.to(tl.int64) * S_VH
    p_pages += i_n.to(tl.int64) * s_pages
    if TREES:
        p_parents += row - within
    s_token = HKV * D
    if DECODE and not WINDOW:  # the single row attends to all keys before `middle`, so they need no mask
        b_acc, b_max, b_sum = _walk(
            b_q, b_acc, b_max, b_sum, p_k, p_v, p_pages, p_parents, o_row, start, start, middle, middle,
            first, past, scale, cap, window, s_token, D, BD, BN, PAGE, WINDOW, CAP, TREES, False, STAGES,
            S_KP, S_KT, S_VP, S_VT,
        )  # fmt: skip
        start = middle
        full = middle
    b_acc, b_max, b_sum = _walk(
        b_q, b_acc, b_max, b_sum, p_k, p_v, p_pages, p_parents, o_row, start, full, middle, stop, first,
        past, scale, cap, window, s_token, D, BD, BN, PAGE, WINDOW, CAP, TREES, True,
        1 if DECODE and not WINDOW else STAGES, S_KP, S_KT, S_VP, S_VT,
    )  # fmt: skip

    b_acc = b_acc * (1.0 / tl.where(b_sum > 0, b_sum, 1.0))[:, None]  # zeros for padding, which has no keys
    b_total = b_max + tl.log2(b_sum)
    if pieces > 1:
        if DECODE:
            slot = row * tl.num_programs(2) + i_p + o_t
        else:
            slot = tl.load(p_items + 6).to(tl.int64) + i_p * rows + o_t
        o_part = slot * (HKV * GROUP) + o_head
        tl.store(p_parts + o_part[:, None] * D + o_d[None, :], b_acc, mask=m_q)
        tl.store(p_weights + o_part, b_total, mask=m_row)
    else:
        o_out = (row + o_t) * (HKV * GROUP) + o_head
        finish(b_acc, b_total, p_out, p_lse, p_sinks, o_out, o_head, m_row, D, BD, SINKS, LSE)


launch_attend = Launcher(_attend, early=True)
