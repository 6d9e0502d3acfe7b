"""The convolution of whole sequences, and of one row per sequence.

The program for a sequence's first rows also replaces the sequence's state, since no other program reads the
old one.
"""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN201, ANN202, D103, RUF005, SIM108
# mypy: disable-error-code="assignment, no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from switchrail_kernels.constants import LOG2E
from switchrail_kernels.dependent import wait
from switchrail_kernels.launch import TABLES
from switchrail_kernels.tables import load_piece


@triton.jit
def entry(p, column, o_c, C, S_W: tl.constexpr, S_C: tl.constexpr):
    """The addresses of a state's column for channels `o_c`; S_W is 0 if channels are dense and innermost."""
    if S_W == 0:
        p = p + column * C + o_c
    else:
        p = p + column * S_W + o_c * S_C
    return p


@triton.jit
def load_bias(p_bias, o_c, m_c, BIAS: tl.constexpr):
    """The bias [BC], or zeros: the initial values of the sums."""
    b_bias = tl.zeros((o_c.shape[0],), tl.float32)
    if BIAS:
        b_bias += tl.load(p_bias + o_c, mask=m_c, other=0.0).to(tl.float32)
    return b_bias


@triton.jit
def activate(b_y, SILU: tl.constexpr):
    """Apply the activation."""
    if SILU:
        b_root = tl.rsqrt(1.0 + tl.exp2(b_y * -LOG2E))  # fewer instructions than a division
        b_y = b_y * b_root * b_root
    return b_y


@triton.jit
def _rows(
    p_x, p_old, p_out, taps, b_bias, o_c, old, within, t, rows, s_xt, C,
    W: tl.constexpr, BT: tl.constexpr, SILU: tl.constexpr, S_W: tl.constexpr, S_C: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Compute `BT` rows from row `t` on.

    Without MASKED, all rows and channels exist, and no row needs the state.
    """
    inputs = ()
    for i in tl.static_range(BT + W - 1):
        p_row = p_x + (i - (W - 1)) * s_xt + o_c
        if MASKED:
            at = t + i - (W - 1)
            m_row = o_c < tl.where((at >= -within) & (at < rows), C, 0)
            inputs = inputs + (tl.load(p_row, mask=m_row, other=0.0),)
        else:
            inputs = inputs + (tl.load(p_row),)
    for i in tl.static_range(BT):
        b_y = b_bias
        for j in tl.static_range(W):
            b_y += inputs[i + j].to(tl.float32) * taps[j]
        if MASKED:
            for j in tl.static_range(max(W - 1 - i, 0)):
                column = within + t + i + j
                m_old = o_c < tl.where(column < W - 1, old, 0)
                b_old = tl.load(entry(p_old, column, o_c, C, S_W, S_C), mask=m_old, other=0.0)
                b_y += b_old.to(tl.float32) * taps[j]
        b_y = activate(b_y, SILU).to(p_out.dtype.element_ty)
        if MASKED:
            tl.store(p_out + i * C + o_c, b_y, mask=o_c < tl.where(t + i < rows, C, 0))
        else:
            tl.store(p_out + i * C + o_c, b_y)


@triton.jit
def _tile(
    p_x, p_old, p_out, taps, b_bias, o_c, o_x, old, within, t, rows, s_xt, C,
    W: tl.constexpr, BT: tl.constexpr, SILU: tl.constexpr, S_W: tl.constexpr, S_C: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Like `_rows`, but with all rows at once, for inputs whose channels are not contiguous."""
    o_t = tl.arange(0, BT)
    m_out = (t + o_t < rows)[:, None] & (o_c < C)[None, :]
    b_y = tl.zeros((BT, o_c.shape[0]), tl.float32) + b_bias[None, :]
    for j in tl.static_range(W):
        o_from = o_t + (j - (W - 1))
        p_from = p_x + o_from[:, None] * s_xt + o_x[None, :]
        if MASKED:
            b_x = tl.load(p_from, mask=(within + t + o_from >= 0)[:, None] & m_out, other=0.0)
        else:
            b_x = tl.load(p_from)
        b_y += b_x.to(tl.float32) * taps[j][None, :]
        if MASKED and j < W - 1:
            o_column = within + t + o_t + j
            m_old = (o_column < W - 1)[:, None] & (o_c < old)[None, :]
            b_old = tl.load(entry(p_old, o_column[:, None], o_c[None, :], C, S_W, S_C), mask=m_old, other=0.0)
            b_y += b_old.to(tl.float32) * taps[j][None, :]
    b_y = activate(b_y, SILU).to(p_out.dtype.element_ty)
    if MASKED:
        tl.store(p_out + o_t[:, None] * C + o_c[None, :], b_y, mask=m_out)
    else:
        tl.store(p_out + o_t[:, None] * C + o_c[None, :], b_y)


@triton.jit
def _piece(
    p_x, p_old, p_out, taps, b_bias, o_c, o_x, old, within, t, rows, s_xt, s_xc, C,
    W: tl.constexpr, BT: tl.constexpr, SILU: tl.constexpr, S_W: tl.constexpr, S_C: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Compute rows with the function for the layout of the inputs. MASKED: rows or channels may be absent."""
    if s_xc == 1:
        _rows(
            p_x, p_old, p_out, taps, b_bias, o_c, old, within, t, rows, s_xt, C,
            W, BT, SILU, S_W, S_C, MASKED,
        )  # fmt: skip
    else:
        _tile(
            p_x, p_old, p_out, taps, b_bias, o_c, o_x, old, within, t, rows, s_xt, C,
            W, BT, SILU, S_W, S_C, MASKED,
        )  # fmt: skip


@triton.jit(do_not_specialize_on_alignment=TABLES)
def convolve(
    p_x, p_weight, p_bias, p_state, p_out, p_pieces, p_cu_seqlens, p_read_slots, p_write_slots,
    p_has_initial_state, p_kept_slots,
    s_xt, s_xc, s_slot,
    C, every, kept,
    W: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr, BIAS: tl.constexpr, SILU: tl.constexpr,
    S_W: tl.constexpr, S_C: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    # Concurrent programs work on whole rows, which are adjacent in memory.
    i_p = tl.program_id(0) // tl.cdiv(C, BC)
    i_c = tl.program_id(0) % tl.cdiv(C, BC)
    i_n, within, row, rows = load_piece(p_pieces, i_p)
    o_c = i_c * BC + tl.arange(0, BC)
    m_c = o_c < C
    b_bias = load_bias(p_bias, o_c, m_c, BIAS)
    taps = ()
    for j in tl.static_range(W):
        taps = taps + (tl.load(p_weight + o_c * W + j, mask=m_c, other=0.0).to(tl.float32),)
    read = tl.load(p_read_slots + i_n)
    write = tl.load(p_write_slots + i_n)
    p_x += row * s_xt
    p_out += row * C
    if write < 0:  # padding
        for t in range(rows):
            tl.store(p_out + t * C + o_c, tl.zeros((BC,), p_out.dtype.element_ty), mask=m_c)
        return

    old = tl.where(tl.load(p_has_initial_state + i_n), tl.where(read >= 0, C, 0), 0)
    p_old = p_state + read * s_slot
    o_x = o_c.to(tl.int64) * s_xc  # with contiguous time, s_xc may be as large as the number of rows
    for t in range(0, rows, BT):
        p_xt = p_x + t * s_xt
        p_yt = p_out + t * C
        if (within + t >= W - 1) & (t + BT <= rows) & (i_c * BC + BC <= C):
            _piece(
                p_xt, p_old, p_yt, taps, b_bias, o_c, o_x, old, within, t, rows, s_xt, s_xc, C,
                W, BT, SILU, S_W, S_C, False,
            )  # fmt: skip
        else:
            _piece(
                p_xt, p_old, p_yt, taps, b_bias, o_c, o_x, old, within, t, rows, s_xt, s_xc, C,
                W, BT, SILU, S_W, S_C, True,
            )  # fmt: skip

    if KEEP:
        # Only the first piece of a sequence reads the old state; other pieces have W - 1 rows before them.
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
                    entry(p_old, after + j, o_c, C, S_W, S_C),
                    mask=o_c < tl.where(i_from < 0, old, 0),
                    other=0.0,
                )
                b_s = tl.where(i_from >= 0, b_x.to(tl.float32), b_s.to(tl.float32))
                m_kept = o_c < tl.where(slot >= 0, C, 0)
                p_kept = entry(p_state + slot * s_slot, j, o_c, C, S_W, S_C)
                tl.store(p_kept, b_s.to(p_state.dtype.element_ty), mask=m_kept)

    if within == 0:
        p_new = p_state + write * s_slot
        tl.debug_barrier()  # waits until the program's other threads have read the data replaced below
        length = tl.load(p_cu_seqlens + i_n + 1) - tl.load(p_cu_seqlens + i_n)
        for j in tl.static_range(W - 1):
            # In ascending order, so that a short sequence reads each old column before replacing it.
            i_from = (length - (W - 1) + j).to(tl.int64)
            b_old = tl.load(
                p_x + i_from * s_xt + o_c.to(tl.int64) * s_xc,
                mask=o_c < tl.where(i_from >= 0, C, 0),
                other=0.0,
            )
            b_s = tl.load(
                entry(p_old, length + j, o_c, C, S_W, S_C), mask=o_c < tl.where(i_from < 0, old, 0), other=0.0
            )
            b_s = tl.where(i_from >= 0, b_old.to(tl.float32), b_s.to(tl.float32))
            tl.store(entry(p_new, j, o_c, C, S_W, S_C), b_s.to(p_state.dtype.element_ty), mask=m_c)


@triton.jit(do_not_specialize_on_alignment=TABLES)
def step(
    p_x, p_weight, p_bias, p_state, p_out, p_read_slots, p_write_slots,
    s_xt, s_xc, s_slot,
    C,
    W: tl.constexpr, BC: tl.constexpr, BIAS: tl.constexpr, SILU: tl.constexpr, S_W: tl.constexpr,
    S_C: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    i_n = tl.program_id(0).to(tl.int64)
    o_c = tl.program_id(1) * BC + tl.arange(0, BC)
    m_c = o_c < C
    b_y = load_bias(p_bias, o_c, m_c, BIAS)
    taps = ()
    for j in tl.static_range(W):
        taps = taps + (tl.load(p_weight + o_c * W + j, mask=m_c, other=0.0).to(tl.float32),)

    wait(EARLY)
    # All loads come first: a store waits for the numbers that it stores, and delays the loads after it.
    read = tl.load(p_read_slots + i_n)
    write = tl.load(p_write_slots + i_n)
    b_x = tl.load(p_x + i_n * s_xt + o_c.to(tl.int64) * s_xc, mask=m_c, other=0.0)
    m_old = o_c < tl.where(read >= 0, C, 0)
    m_new = o_c < tl.where(write >= 0, C, 0)
    window = ()
    for j in tl.static_range(W - 1):
        p_old = entry(p_state + read * s_slot, j, o_c, C, S_W, S_C)
        window = window + (tl.load(p_old, mask=m_old, other=0.0),)
    window = window + (b_x.to(p_state.dtype.element_ty),)
    for j in tl.static_range(W - 1):
        b_y += window[j].to(tl.float32) * taps[j]
        p_new = entry(p_state + write * s_slot, j, o_c, C, S_W, S_C)
        tl.store(p_new, window[j + 1], mask=m_new)
    b_y += b_x.to(tl.float32) * taps[W - 1]
    b_y = activate(b_y, SILU)
    b_y = tl.where(write >= 0, b_y, 0.0)
    tl.store(p_out + i_n * C + o_c, b_y.to(p_out.dtype.element_ty), mask=m_c)


__all__ = ["activate", "convolve", "entry", "load_bias", "step"]
