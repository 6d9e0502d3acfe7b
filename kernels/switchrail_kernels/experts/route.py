"""Chooses each row's experts, and sorts the pairs (row, expert) by expert.

A program handles a chunk of rows and counts the rows of each expert. A pair's position is its expert's
start, which follows from the totals of all chunks, plus that expert's pairs in earlier chunks, plus the
pair's rank in its own chunk. Pairs of shared experts come last. The result does not depend on the order in
which programs run.
"""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN201, ANN202
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from switchrail_kernels.dependent import wait

_LEAST = tl.constexpr(-(2**31))


@triton.jit
def _order_chunk(
    p_experts, p_ranks, p_before, p_total, p_places, p_pairs, p_blocks, p_used, i_c, rows,
    E: tl.constexpr, S: tl.constexpr, K: tl.constexpr, EP: tl.constexpr, KP: tl.constexpr,
    BT: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Store the pairs of one chunk at their sorted positions.

    Also store expert, first position and number of pairs of each block whose first pair is in the chunk. A
    block is up to BM adjacent pairs of one expert.
    """
    o_e = tl.arange(0, EP)
    m_e = o_e < E
    b_total = tl.load(p_total + o_e, mask=m_e, other=0)
    b_size = (b_total + BM - 1) // BM
    blocks = tl.sum(b_size, 0)
    pairs = tl.sum(b_total, 0)
    p_place = p_places + i_c * 4 * E
    tl.store(p_place + o_e, tl.cumsum(b_total, 0) - b_total, mask=m_e)
    tl.store(p_place + E + o_e, tl.cumsum(b_size, 0) - b_size, mask=m_e)
    if i_c == 0:
        tl.store(p_used, blocks + S * tl.cdiv(rows, BM))
    tl.debug_barrier()  # waits until the program's other threads have stored the values loaded below

    o_p = tl.arange(0, BT * KP)
    o_t = i_c * BT + o_p // KP
    o_k = o_p % KP
    pair = o_t * (K + S) + o_k
    m_p = (o_k < K) & (o_t < rows)
    b_e = tl.load(p_experts + pair, mask=m_p, other=0)
    b_rank = tl.load(p_ranks + pair, mask=m_p, other=0) + tl.load(p_before + b_e, mask=m_p, other=0)
    b_first = tl.load(p_place + b_e, mask=m_p, other=0) + b_rank
    b_rows = tl.load(p_total + b_e, mask=m_p, other=0) - b_rank
    p_block = p_blocks + 3 * (tl.load(p_place + E + b_e, mask=m_p, other=0) + b_rank // BM)
    tl.store(p_pairs + b_first, pair, mask=m_p)
    m_p &= b_rank % BM == 0
    tl.store(p_block, b_e, mask=m_p)
    tl.store(p_block + 1, b_first, mask=m_p)
    tl.store(p_block + 2, tl.minimum(b_rows, BM), mask=m_p)

    o_t = i_c * BT + tl.arange(0, BT)
    for s in tl.static_range(S):
        first = pairs + s * rows + o_t
        m_t = o_t < rows
        tl.store(p_pairs + first, o_t * (K + S) + K + s, mask=m_t)
        m_t &= o_t % BM == 0
        p_block = p_blocks + 3 * (blocks + s * tl.cdiv(rows, BM) + o_t // BM)
        tl.store(p_block, tl.zeros((BT,), tl.int32) + (E + s), mask=m_t)
        tl.store(p_block + 1, first, mask=m_t)
        tl.store(p_block + 2, tl.minimum(rows - o_t, BM), mask=m_t)


@triton.jit(do_not_specialize=["T"])
def choose(
    p_logits, p_ids, p_rows, p_experts, p_weights, p_ranks, p_counts, p_places, p_pairs, p_blocks, p_used,
    s_logits, s_ids, T,
    E: tl.constexpr, S: tl.constexpr, K: tl.constexpr, EP: tl.constexpr, KP: tl.constexpr, BT: tl.constexpr,
    BM: tl.constexpr, CHOSEN: tl.constexpr, NORMALIZE: tl.constexpr, PADDED: tl.constexpr,
    COUNT: tl.constexpr, ORDER: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Choose the experts of a chunk's rows, best first (in a tie, the lower number), then the shared ones.

    If CHOSEN, `p_ids` has the experts and `p_logits` their weights, [T, K] each. With COUNT, also count the
    rows of each expert and rank them. With ORDER, which is for a single chunk, also sort the pairs.
    """
    wait(EARLY)
    i_c = tl.program_id(0)
    rows = T
    if PADDED:
        rows = tl.minimum(tl.load(p_rows).to(tl.int32), T)
    o_t = i_c * BT + tl.arange(0, BT)
    o_e = tl.arange(0, EP)
    m_t = o_t < rows
    m_e = o_e < E
    p_row = p_logits + o_t.to(tl.int64) * s_logits
    m_l = m_t[:, None] & m_e[None, :]
    b_slot = tl.full((BT, EP), -1, tl.int32)
    if CHOSEN:
        p_id = p_ids + o_t.to(tl.int64) * s_ids
        b_p = tl.zeros((BT, EP), tl.float32)
        for k in range(K):
            b_id = tl.load(p_id + k, mask=m_t, other=-1).to(tl.int32)
            b_w = tl.load(p_row + k, mask=m_t, other=0.0).to(tl.float32)
            m_best = o_e[None, :] == b_id[:, None]
            b_slot = tl.where(m_best, k, b_slot)
            b_p = tl.where(m_best, b_w[:, None], b_p)
    else:
        p_l = p_row[:, None] + o_e[None, :]
        b_l = tl.load(p_l, mask=m_l, other=0.0).to(tl.float32)
        # Integers that compare like the logits: zeros of either sign are equal, and NaN is the largest.
        b_key = tl.where(b_l == 0.0, 0.0, b_l).to(tl.int32, bitcast=True)
        b_key = tl.where(b_l == b_l, b_key ^ ((b_key >> 31) & 0x7FFFFFFF), 0x7FFFFFFF)
        b_key = tl.where(m_e[None, :], b_key, _LEAST)
        for k in range(K):
            _, b_best = tl.max(b_key, 1, return_indices=True, return_indices_tie_break_left=True)
            m_best = o_e[None, :] == b_best[:, None]
            b_slot = tl.where(m_best, k, b_slot)
            b_key = tl.where(m_best, _LEAST, b_key)
        b_l = tl.load(p_l, mask=m_l, other=0.0).to(tl.float32)  # loaded again to use fewer registers
        b_l = tl.where(m_e[None, :], b_l, float("-inf"))
        b_p = tl.exp(b_l - tl.max(b_l, 1)[:, None])
        b_p = b_p / tl.sum(b_p, 1)[:, None]
        if NORMALIZE:
            b_p = b_p / tl.sum(tl.where(b_slot >= 0, b_p, 0.0), 1)[:, None]
    m_s = (b_slot >= 0) & m_l
    o_s = o_t[:, None] * (K + S) + b_slot
    tl.store(p_experts + o_s, tl.zeros((BT, EP), tl.int32) + o_e[None, :], mask=m_s)
    tl.store(p_weights + o_s, b_p, mask=m_s)
    for s in tl.static_range(S):
        b_g = tl.load(p_row + (E + s), mask=m_t, other=0.0).to(tl.float32)
        tl.store(p_experts + o_t * (K + S) + (K + s), tl.zeros((BT,), tl.int32) + (E + s), mask=m_t)
        tl.store(p_weights + o_t * (K + S) + (K + s), 1.0 / (1.0 + tl.exp(-b_g)), mask=m_t)
    if COUNT:
        b_mine = m_s.to(tl.int32)
        tl.store(p_ranks + o_s, tl.cumsum(b_mine, 0) - b_mine, mask=m_s)
        tl.store(p_counts + i_c * E + o_e, tl.sum(b_mine, 0), mask=m_e)
        if ORDER:
            tl.store(p_counts + E + o_e, tl.zeros((EP,), tl.int32), mask=m_e)
            tl.debug_barrier()  # `_order_chunk` loads what other threads have stored
            _order_chunk(
                p_experts, p_ranks, p_counts + E, p_counts, p_places, p_pairs, p_blocks, p_used, i_c, rows,
                E, S, K, EP, KP, BT, BM,
            )  # fmt: skip


@triton.jit(do_not_specialize=["chunks"])
def add_up(p_counts, chunks, E: tl.constexpr, BC: tl.constexpr, BE: tl.constexpr, EARLY: tl.constexpr):
    """Replaces each chunk's counts by the sums over all earlier chunks, and appends the totals."""
    wait(EARLY)
    o_e = tl.program_id(0) * BE + tl.arange(0, BE)
    o_c = tl.arange(0, BC)
    b_total = tl.zeros((BE,), tl.int32)
    for c in range(0, chunks, BC):
        p_count = p_counts + (c + o_c)[:, None] * E + o_e[None, :]
        m_count = (c + o_c < chunks)[:, None] & (o_e < E)[None, :]
        b_count = tl.load(p_count, mask=m_count, other=0)
        tl.store(p_count, tl.cumsum(b_count, 0) - b_count + b_total[None, :], mask=m_count)
        b_total += tl.sum(b_count, 0)
    tl.store(p_counts + chunks * E + o_e, b_total, mask=o_e < E)


@triton.jit(do_not_specialize=["T", "chunks"])
def order(
    p_rows, p_experts, p_ranks, p_counts, p_places, p_pairs, p_blocks, p_used, T, chunks,
    E: tl.constexpr, S: tl.constexpr, K: tl.constexpr, EP: tl.constexpr, KP: tl.constexpr, BT: tl.constexpr,
    BC: tl.constexpr, BM: tl.constexpr, PADDED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Sorts the pairs of all chunks, one program per chunk.

    If BC > 0, each program adds up the counts of all chunks (at most BC) itself; otherwise, `add_up` has done
    so.
    """
    wait(EARLY)
    i_c = tl.program_id(0)
    rows = T
    if PADDED:
        rows = tl.minimum(tl.load(p_rows).to(tl.int32), T)
    p_before = p_counts + i_c * E
    p_total = p_counts + chunks * E
    if BC > 0:
        o_c = tl.arange(0, BC)
        o_e = tl.arange(0, EP)
        m_e = o_e < E
        m_counts = (o_c < chunks)[:, None] & m_e[None, :]
        b_counts = tl.load(p_counts + o_c[:, None] * E + o_e[None, :], mask=m_counts, other=0)
        p_before = p_places + (4 * i_c + 2) * E
        p_total = p_before + E
        tl.store(p_before + o_e, tl.sum(tl.where((o_c < i_c)[:, None], b_counts, 0), 0), mask=m_e)
        tl.store(p_total + o_e, tl.sum(b_counts, 0), mask=m_e)
        tl.debug_barrier()  # `_order_chunk` loads what other threads have stored
    _order_chunk(
        p_experts, p_ranks, p_before, p_total, p_places, p_pairs, p_blocks, p_used, i_c, rows,
        E, S, K, EP, KP, BT, BM,
    )  # fmt: skip
