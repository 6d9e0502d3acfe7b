"""The convolution of whole sequences, and of one row each.

The program that computes a sequence's first rows also replaces its state: it alone reads the old one.
"""

# Triton reads the types of a kernel's arguments at the call.
# ruff: noqa: ANN001, ANN201, ANN202, D103
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from switchrail_kernels.constants import LOG2E


@triton.jit
def finish(b_y, p_bias, o_c, m_c, BIAS: tl.constexpr, SILU: tl.constexpr):
    """Adds the bias [BC] to the sums [rows, BC] and applies the activation."""
    if BIAS:
        b_y += tl.load(p_bias + o_c, mask=m_c, other=0.0).to(tl.float32)[None, :]
    if SILU:
        b_root = tl.rsqrt(1.0 + tl.exp2(b_y * -LOG2E))  # fewer instructions than a division
        b_y = b_y * b_root * b_root
    return b_y


@triton.jit
def _inside(
    p_x, p_weight, o_t, o_c, within, rows, C, s_xt, s_xc, W: tl.constexpr, MASKED: tl.constexpr
):  # fmt: skip
    """The sums over this call's inputs; without MASKED all rows, and what they reach back to, exist."""
    b_y = tl.zeros((o_t.shape[0], o_c.shape[0]), tl.float32)
    o_x = o_c.to(tl.int64) * s_xc  # with time innermost, s_xc is as long as the batch
    for j in tl.static_range(W):
        o_from = o_t + (j - (W - 1))
        p_from = p_x + o_from[:, None] * s_xt + o_x[None, :]
        if MASKED:
            m_from = (o_from >= -within) & (o_t < rows)
            b_x = tl.load(p_from, mask=m_from[:, None] & (o_c < C)[None, :], other=0.0)
            b_w = tl.load(p_weight + o_c * W + j, mask=o_c < C, other=0.0)
        else:
            b_x = tl.load(p_from)
            b_w = tl.load(p_weight + o_c * W + j)
        b_y += b_x.to(tl.float32) * b_w.to(tl.float32)[None, :]
    return b_y


@triton.jit
def convolve(
    p_x,
    p_weight,
    p_bias,
    p_state,
    p_out,
    p_pieces,
    p_cu_seqlens,
    p_read_slots,
    p_write_slots,
    p_has_initial_state,
    p_kept_slots,
    s_xt,
    s_xc,
    s_slot,
    C,
    every,
    kept,
    W: tl.constexpr,
    BT: tl.constexpr,
    BC: tl.constexpr,
    BIAS: tl.constexpr,
    SILU: tl.constexpr,
    KEEP: tl.constexpr,
):
    i_p = tl.program_id(0)
    i_c = tl.program_id(1)
    i_n = tl.load(p_pieces + 4 * i_p)
    within = tl.load(p_pieces + 4 * i_p + 1)
    row = tl.load(p_pieces + 4 * i_p + 2).to(tl.int64)
    rows = tl.load(p_pieces + 4 * i_p + 3)
    read = tl.load(p_read_slots + i_n)
    write = tl.load(p_write_slots + i_n)

    o_t = tl.arange(0, BT)
    o_c = i_c * BC + tl.arange(0, BC)
    m_c = o_c < C
    m_out = (o_t < rows)[:, None] & m_c[None, :]
    p_x += row * s_xt
    p_out += row * C
    if write < 0:  # padding
        tl.store(
            p_out + o_t[:, None] * C + o_c[None, :], tl.zeros((BT, BC), p_out.dtype.element_ty), mask=m_out
        )
        return

    if (within >= W - 1) & (rows == BT) & (i_c * BC + BC <= C):
        b_y = _inside(p_x, p_weight, o_t, o_c, within, rows, C, s_xt, s_xc, W, False)
    else:
        b_y = _inside(p_x, p_weight, o_t, o_c, within, rows, C, s_xt, s_xc, W, True)

    old = tl.where(tl.load(p_has_initial_state + i_n), tl.where(read >= 0, C, 0), 0)
    m_old = o_c < old
    p_old = p_state + read * s_slot
    if KEEP:
        # Old inputs are in states of a sequence's first piece only: the others have W - 1 rows before them.
        for after in range((within // every + 1) * every, within + rows + 1, every):
            slot = tl.load(p_kept_slots + i_n.to(tl.int64) * kept + after // every - 1)
            for j in tl.static_range(W - 1):
                i_from = after - (W - 1) + j
                b_x = tl.load(
                    p_x + (i_from - within).to(tl.int64) * s_xt + o_c.to(tl.int64) * s_xc,
                    mask=o_c < tl.where(i_from >= 0, C, 0),
                    other=0.0,
                )
                b_s = tl.load(
                    p_old + (after + j) * C + o_c, mask=o_c < tl.where(i_from < 0, old, 0), other=0.0
                )
                b_s = tl.where(i_from >= 0, b_x.to(tl.float32), b_s.to(tl.float32))
                m_kept = o_c < tl.where(slot >= 0, C, 0)
                tl.store(p_state + slot * s_slot + j * C + o_c, b_s.to(p_state.dtype.element_ty), mask=m_kept)

    if within == 0:
        p_new = p_state + write * s_slot
        for j in tl.static_range(W - 1):
            o_column = o_t + j
            b_old = tl.load(
                p_old + o_column[:, None] * C + o_c[None, :],
                mask=(o_column < W - 1)[:, None] & m_old[None, :],
                other=0.0,
            )
            b_tap = tl.load(p_weight + o_c * W + j, mask=m_c, other=0.0)
            b_y += b_old.to(tl.float32) * b_tap.to(tl.float32)[None, :]
        tl.debug_barrier()  # other threads of this program have read what is now replaced
        length = tl.load(p_cu_seqlens + i_n + 1) - tl.load(p_cu_seqlens + i_n)
        for j in tl.static_range(W - 1):
            # Ascending, so that a short sequence reads each old column before it is replaced.
            i_from = (length - (W - 1) + j).to(tl.int64)
            b_old = tl.load(
                p_x + i_from * s_xt + o_c.to(tl.int64) * s_xc,
                mask=o_c < tl.where(i_from >= 0, C, 0),
                other=0.0,
            )
            b_s = tl.load(p_old + (length + j) * C + o_c, mask=o_c < tl.where(i_from < 0, old, 0), other=0.0)
            b_s = tl.where(i_from >= 0, b_old.to(tl.float32), b_s.to(tl.float32))
            tl.store(p_new + j * C + o_c, b_s.to(p_state.dtype.element_ty), mask=m_c)

    b_y = finish(b_y, p_bias, o_c, m_c, BIAS, SILU)
    tl.store(p_out + o_t[:, None] * C + o_c[None, :], b_y.to(p_out.dtype.element_ty), mask=m_out)


@triton.jit
def step(
    p_x,
    p_weight,
    p_bias,
    p_state,
    p_out,
    p_read_slots,
    p_write_slots,
    s_xt,
    s_xc,
    s_slot,
    C,
    W: tl.constexpr,
    BC: tl.constexpr,
    BIAS: tl.constexpr,
    SILU: tl.constexpr,
):
    i_n = tl.program_id(0).to(tl.int64)
    i_c = tl.program_id(1)
    read = tl.load(p_read_slots + i_n)
    write = tl.load(p_write_slots + i_n)
    o_c = i_c * BC + tl.arange(0, BC)
    m_c = o_c < C
    m_old = o_c < tl.where(read >= 0, C, 0)
    m_new = o_c < tl.where(write >= 0, C, 0)
    b_x = tl.load(p_x + i_n * s_xt + o_c.to(tl.int64) * s_xc, mask=m_c, other=0.0).to(tl.float32)
    b_y = b_x * tl.load(p_weight + o_c * W + (W - 1), mask=m_c, other=0.0).to(tl.float32)
    p_new = p_state + write * s_slot + o_c
    for j in tl.static_range(W - 1):
        b_s = tl.load(p_state + read * s_slot + j * C + o_c, mask=m_old, other=0.0)
        b_y += b_s.to(tl.float32) * tl.load(p_weight + o_c * W + j, mask=m_c, other=0.0).to(tl.float32)
        if j > 0:
            tl.store(p_new + (j - 1) * C, b_s, mask=m_new)
    tl.store(p_new + (W - 2) * C, b_x.to(p_state.dtype.element_ty), mask=m_new)
    b_y = tl.reshape(finish(b_y[None, :], p_bias, o_c, m_c, BIAS, SILU), (BC,))
    b_y = tl.where(write >= 0, b_y, 0.0)
    tl.store(p_out + i_n * C + o_c, b_y.to(p_out.dtype.element_ty), mask=m_c)


__all__ = ["convolve", "finish", "step"]
