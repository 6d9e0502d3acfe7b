"""The last steps of paged softmax attention: merging partial results, adding sinks, writing the output."""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN201, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from switchrail_kernels.constants import LN2, LOG2E
from switchrail_kernels.dependent import wait
from switchrail_kernels.launch import TABLES, Launcher
from switchrail_kernels.softmax import add_parts


@triton.jit
def _with_sink(b_total, b_sink):
    """The log-sum-exp, to base 2, with a sink's logit included, and the factor to multiply the output by."""
    b_ref = tl.maximum(b_total, b_sink)
    b_ref = tl.where(b_ref == float("-inf"), 0.0, b_ref)
    b_with = b_ref + tl.log2(tl.exp2(b_total - b_ref) + tl.exp2(b_sink - b_ref))
    is_padding = b_total == float("-inf")
    return tl.where(is_padding, b_total, b_with), tl.where(is_padding, 0.0, tl.exp2(b_total - b_with))


@triton.jit
def finish(
    b_acc, b_total, p_out, p_lse, p_sinks, o_out, o_head, m_row, D: tl.constexpr, BD: tl.constexpr,
    SINKS: tl.constexpr, LSE: tl.constexpr,
):  # fmt: skip
    """Write rows of the output. `b_total` is the rows' log-sum-exp to base 2, without a sink."""
    if SINKS:
        b_sink = tl.load(p_sinks + o_head, mask=m_row, other=0.0).to(tl.float32) * LOG2E
        b_total, b_factor = _with_sink(b_total, b_sink)
        b_acc *= b_factor[:, None]
    o_d = tl.arange(0, BD)
    m_out = m_row[:, None] & (o_d < D)[None, :]
    tl.store(p_out + o_out[:, None] * D + o_d[None, :], b_acc.to(p_out.dtype.element_ty), mask=m_out)
    if LSE:
        tl.store(p_lse + o_out, b_total * LN2, mask=m_row)


@triton.jit
def piece_length(keys, most, least, BN: tl.constexpr):
    """The length of each piece of a decode's keys, at least `least`, and the number of pieces, up to `most`.

    Computed on the device, since a replayed graph may have more keys than at its capture.
    """
    length = tl.maximum(tl.cdiv(keys, most * BN) * BN, least)
    return length, tl.maximum(tl.cdiv(keys, length), 1)


@triton.jit
def _merge(
    p_parts, p_weights, p_out, p_lse, p_sinks, row, slot, step, pieces, D: tl.constexpr, BD: tl.constexpr,
    SINKS: tl.constexpr, LSE: tl.constexpr,
):  # fmt: skip
    """Write the output of one head of one token from its partial results.

    The first one is in `slot`; each further one is `step` slots after the previous one.
    """
    i_h = tl.program_id(1)
    heads = tl.num_programs(1)
    o_d = tl.arange(0, BD)
    b_acc = tl.zeros((BD,), tl.float32)
    b_max = float("-inf")
    b_sum = 0.0
    for i_start in range(0, pieces, 16):
        o_p = i_start + tl.arange(0, 16)
        o_part = (slot + o_p.to(tl.int64) * step) * heads + i_h
        m_part = o_p < pieces
        b_weight = tl.load(p_weights + o_part, mask=m_part, other=float("-inf"))
        m_load = m_part[:, None] & (o_d < D)[None, :]
        b_part = tl.load(p_parts + o_part[:, None] * D + o_d[None, :], mask=m_load, other=0.0)
        b_acc, b_max, b_sum = add_parts(b_acc, b_max, b_sum, b_part, b_weight)
    b_acc = b_acc / tl.where(b_sum > 0, b_sum, 1.0)
    b_total = b_max + tl.log2(b_sum)
    if SINKS:
        b_sink = tl.load(p_sinks + i_h).to(tl.float32) * LOG2E
        b_total, b_factor = _with_sink(b_total, b_sink)
        b_acc *= b_factor
    o_out = row.to(tl.int64) * heads + i_h
    tl.store(p_out + o_out * D + o_d, b_acc.to(p_out.dtype.element_ty), mask=o_d < D)
    if LSE:
        tl.store(p_lse + o_out, b_total * LN2)


@triton.jit(do_not_specialize=["PIECES"], do_not_specialize_on_alignment=TABLES)
def _merge_pieces(
    p_parts, p_weights, p_out, p_lse, p_sinks, p_kv_lens,
    window, PIECES, least,
    D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, WINDOW: tl.constexpr, SINKS: tl.constexpr,
    LSE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait(EARLY)
    row = tl.program_id(0)
    keys = tl.load(p_kv_lens + row)
    if WINDOW:
        keys -= tl.maximum(keys - window, 0) // BN * BN
    _, pieces = piece_length(keys, PIECES, least, BN)
    if pieces > 1:
        slot = row.to(tl.int64) * PIECES
        _merge(p_parts, p_weights, p_out, p_lse, p_sinks, row, slot, 1, pieces, D, BD, SINKS, LSE)


@triton.jit(do_not_specialize_on_alignment=TABLES)
def _merge_rows(
    p_parts, p_weights, p_out, p_lse, p_sinks, p_rows,
    D: tl.constexpr, BD: tl.constexpr, SINKS: tl.constexpr, LSE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait(EARLY)
    p_rows += 8 * tl.program_id(0)
    row = tl.load(p_rows)
    slot = tl.load(p_rows + 1).to(tl.int64)
    step = tl.load(p_rows + 2)
    pieces = tl.load(p_rows + 3)
    _merge(p_parts, p_weights, p_out, p_lse, p_sinks, row, slot, step, pieces, D, BD, SINKS, LSE)


launch_merge_pieces = Launcher(_merge_pieces, early=True)
launch_merge_rows = Launcher(_merge_rows, early=True)
