"""The products of experts: for blocks of pairs (row, expert) with the same expert, or for single pairs."""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN201, ANN202, RUF005, SIM102
# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from switchrail_kernels.dependent import wait, wait_first


@triton.jit
def _silu_and_mul(b_gate, b_up):
    return b_gate / (1.0 + tl.exp(-b_gate)) * b_up


@triton.jit
def _load_block(p_blocks, size: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """The program's block of pairs, and `BN` of its `size` outputs.

    Returns:
        The expert; the position of the block's first pair in the sorted order; offsets and mask of the pairs;
        offsets and mask of the outputs.
    """
    p_blocks += 3 * (tl.program_id(0) // tl.cdiv(size, BN))
    expert, first, rows = tl.load(p_blocks).to(tl.int64), tl.load(p_blocks + 1), tl.load(p_blocks + 2)
    o_m = tl.arange(0, BM)
    o_n = tl.program_id(0) % tl.cdiv(size, BN) * BN + tl.arange(0, BN)
    return expert, first, o_m, o_m < rows, o_n, o_n < size


@triton.jit
def gate_up_tiles(
    p_x, p_weight, p_pairs, p_blocks, p_used, p_inner, s_x,
    H: tl.constexpr, I: tl.constexpr, KS: tl.constexpr,  # noqa: E741
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Compute silu(gate x) (up x) for a block of pairs and `BN` inner channels, stored in sorted order."""
    wait(EARLY)
    if tl.program_id(0) // tl.cdiv(I, BN) >= tl.load(p_used):
        return
    expert, first, o_m, m_m, o_n, m_n = _load_block(p_blocks, I, BM, BN)
    o_k = tl.arange(0, BK)
    b_row = tl.load(p_pairs + first + o_m, mask=m_m, other=0) // KS
    p_a = p_x + b_row.to(tl.int64)[:, None] * s_x + o_k[None, :]
    p_gate = p_weight + expert * (2 * I * H) + tl.where(m_n, o_n, 0)[None, :] * H + o_k[:, None]
    p_up = p_gate + I * H
    b_gate = tl.zeros((BM, BN), tl.float32)
    b_up = tl.zeros((BM, BN), tl.float32)
    for k in range(0, H, BK):
        if H % BK == 0:
            b_a = tl.load(p_a + k, mask=m_m[:, None], other=0.0)
            b_wg = tl.load(p_gate + k)
            b_wu = tl.load(p_up + k)
        else:
            m_k = k + o_k < H
            b_a = tl.load(p_a + k, mask=m_m[:, None] & m_k[None, :], other=0.0)
            b_wg = tl.load(p_gate + k, mask=m_k[:, None], other=0.0)
            b_wu = tl.load(p_up + k, mask=m_k[:, None], other=0.0)
        b_gate = tl.dot(b_a, b_wg, b_gate, input_precision="ieee")
        b_up = tl.dot(b_a, b_wu, b_up, input_precision="ieee")
    tl.store(
        p_inner + (first + o_m).to(tl.int64)[:, None] * I + o_n[None, :],
        _silu_and_mul(b_gate, b_up).to(p_inner.dtype.element_ty),
        mask=m_m[:, None] & m_n[None, :],
    )


@triton.jit
def down_tiles(
    p_inner, p_weight, p_pairs, p_blocks, p_used, p_each,
    H: tl.constexpr, I: tl.constexpr,  # noqa: E741
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Compute the product with `down` for a block of pairs and `BN` outputs, stored in the order of rows."""
    wait(EARLY)
    if tl.program_id(0) // tl.cdiv(H, BN) >= tl.load(p_used):
        return
    expert, first, o_m, m_m, o_n, m_n = _load_block(p_blocks, H, BM, BN)
    o_k = tl.arange(0, BK)
    b_pair = tl.load(p_pairs + first + o_m, mask=m_m, other=0)
    p_a = p_inner + (first + o_m).to(tl.int64)[:, None] * I + o_k[None, :]
    p_b = p_weight + expert * (H * I) + tl.where(m_n, o_n, 0)[None, :] * I + o_k[:, None]
    b_y = tl.zeros((BM, BN), tl.float32)
    for k in range(0, I, BK):
        if I % BK == 0:
            b_a = tl.load(p_a + k, mask=m_m[:, None], other=0.0)
            b_w = tl.load(p_b + k)
        else:
            m_k = k + o_k < I
            b_a = tl.load(p_a + k, mask=m_m[:, None] & m_k[None, :], other=0.0)
            b_w = tl.load(p_b + k, mask=m_k[:, None], other=0.0)
        b_y = tl.dot(b_a, b_w, b_y, input_precision="ieee")
    tl.store(
        p_each + b_pair.to(tl.int64)[:, None] * H + o_n[None, :],
        b_y.to(p_each.dtype.element_ty),
        mask=m_m[:, None] & m_n[None, :],
    )


@triton.jit
def weigh(
    p_each, p_weights, p_rows, p_out, T,
    H: tl.constexpr, KS: tl.constexpr, BN: tl.constexpr, PADDED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Compute the weighted sum of the results of one row's experts; zeros for a padding row."""
    wait(EARLY)
    i_t = tl.program_id(0)
    rows = T
    if PADDED:
        rows = tl.load(p_rows).to(tl.int32)
    o_n = tl.program_id(1) * BN + tl.arange(0, BN)
    m_n = o_n < H
    m_y = o_n < tl.where(i_t < rows, H, 0)
    b_y = tl.zeros((BN,), tl.float32)
    for k in tl.static_range(KS):
        b_w = tl.load(p_weights + i_t * KS + k, mask=i_t < rows, other=0.0)
        b_e = tl.load(p_each + (i_t.to(tl.int64) * KS + k) * H + o_n, mask=m_y, other=0.0)
        b_y += b_w * b_e.to(tl.float32)
    tl.store(p_out + i_t.to(tl.int64) * H + o_n, b_y.to(p_out.dtype.element_ty), mask=m_n)


@triton.jit
def gate_up_pairs(
    p_x, p_weight, p_experts, p_rows, p_inner, s_x,
    H: tl.constexpr, I: tl.constexpr, KS: tl.constexpr,  # noqa: E741
    BN: tl.constexpr, BK: tl.constexpr, PADDED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Compute silu(gate x) (up x) for one pair and `BN` inner channels."""
    wait_first(EARLY)
    i_p = tl.program_id(0) // tl.cdiv(I, BN)
    i_n = tl.program_id(0) % tl.cdiv(I, BN)
    if PADDED:
        if i_p // KS >= tl.load(p_rows):
            return
    expert = tl.load(p_experts + i_p).to(tl.int64)
    o_n = i_n * BN + tl.arange(0, BN)
    o_k = tl.arange(0, BK)
    m_n = o_n < I
    p_a = p_x + (i_p // KS).to(tl.int64) * s_x + o_k
    p_gate = p_weight + expert * (2 * I * H) + tl.where(m_n, o_n, 0)[:, None] * H + o_k[None, :]
    p_up = p_gate + I * H
    b_gate = tl.zeros((BN, BK), tl.float32)
    b_up = tl.zeros((BN, BK), tl.float32)
    for k in tl.static_range(0, H, BK):
        m_k = k + o_k < H
        b_a = tl.load(p_a + k, mask=m_k, other=0.0).to(tl.float32)[None, :]
        b_gate += b_a * tl.load(p_gate + k, mask=m_k[None, :], other=0.0).to(tl.float32)
        b_up += b_a * tl.load(p_up + k, mask=m_k[None, :], other=0.0).to(tl.float32)
    b_h = _silu_and_mul(tl.sum(b_gate, 1), tl.sum(b_up, 1))
    tl.store(p_inner + i_p.to(tl.int64) * I + o_n, b_h.to(p_inner.dtype.element_ty), mask=m_n)


@triton.jit
def down_pairs(
    p_inner, p_weight, p_experts, p_weights, p_rows, p_out,
    H: tl.constexpr, I: tl.constexpr, KS: tl.constexpr,  # noqa: E741
    BN: tl.constexpr, BK: tl.constexpr, PADDED: tl.constexpr, AHEAD: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Compute `BN` outputs of one row: the weighted sum of its pairs' products with `down`.

    With AHEAD, which requires that `BK` covers all of I, a program reads all its weights before it waits for
    the kernel `gate_up_pairs`. The chosen experts are known by then, as `gate_up_pairs` has waited for them.
    """
    i_t = tl.program_id(0) // tl.cdiv(H, BN)
    i_n = tl.program_id(0) % tl.cdiv(H, BN)
    o_n = i_n * BN + tl.arange(0, BN)
    o_k = tl.arange(0, BK)
    m_n = o_n < H
    p_y = p_out + i_t.to(tl.int64) * H + o_n
    p_row = p_weight + tl.where(m_n, o_n, 0)[:, None] * I + o_k[None, :]
    weights = ()
    if AHEAD:
        read = 1
        if PADDED:
            read = tl.where(i_t < tl.load(p_rows, cache_modifier=".cg"), 1, 0)
        m_k = o_k < tl.where(read > 0, I, 0)
        for e in tl.static_range(KS):
            expert = tl.load(p_experts + i_t * KS + e, mask=read > 0, other=0, cache_modifier=".cg")
            b_w = tl.load(p_row + expert.to(tl.int64) * (H * I), mask=m_k[None, :], other=0.0)
            weights = weights + (b_w,)
    wait(EARLY)
    if PADDED:
        if i_t >= tl.load(p_rows):
            tl.store(p_y, tl.zeros((BN,), p_out.dtype.element_ty), mask=m_n)
            return
    b_y = tl.zeros((BN, BK), tl.float32)
    for e in tl.static_range(KS):
        i_p = i_t * KS + e
        expert = tl.load(p_experts + i_p).to(tl.int64)
        share = tl.load(p_weights + i_p)
        if AHEAD:
            b_h = tl.load(p_inner + i_p.to(tl.int64) * I + o_k, mask=o_k < I, other=0.0).to(tl.float32)
            b_y += (share * b_h)[None, :] * weights[e].to(tl.float32)
        for k in tl.static_range(0, 0 if AHEAD else I, BK):
            m_k = k + o_k < I
            b_h = tl.load(p_inner + i_p.to(tl.int64) * I + k + o_k, mask=m_k, other=0.0).to(tl.float32)
            b_w = tl.load(p_row + expert * (H * I) + k, mask=m_k[None, :], other=0.0).to(tl.float32)
            b_y += (share * b_h)[None, :] * b_w
    tl.store(p_y, tl.sum(b_y, 1).to(p_out.dtype.element_ty), mask=m_n)
