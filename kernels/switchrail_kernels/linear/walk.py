"""Prefill: the scan over the chunks, with the state in registers.

Like the scan of the delta rule, this scan computes transposes (of out and P), so that the state is always a
product's left operand. Hopper's tensor cores can read left operands from registers.
"""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN202, SIM102
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from switchrail.ops.batch import StateBatch

from switchrail_kernels.alignment import is_transposed
from switchrail_kernels.checkpoints import kept_states
from switchrail_kernels.constants import LOG2E
from switchrail_kernels.device import has_large_shared_memory
from switchrail_kernels.fitted import Walk
from switchrail_kernels.launch import TABLES, Launcher, launch_options, padded
from switchrail_kernels.linear.operands import Operands
from switchrail_kernels.linear.prepare import prepare
from switchrail_kernels.replay import scratch
from switchrail_kernels.segments import Chunks, Segments, clear_rows, locate
from switchrail_kernels.states import within_slot
from switchrail_kernels.tables import load_slots


@triton.jit
def _walk_chunk(
    b_s, b_all, p_q, p_k, p_v, p_scores, p_gates, p_out, rate, skip, o_v, rows, scale,
    s_qt: tl.constexpr, s_kt: tl.constexpr, s_vt: tl.constexpr, s_ot: tl.constexpr, K: tl.constexpr,
    V: tl.constexpr, BK: tl.constexpr, CHUNK: tl.constexpr, STEPS: tl.constexpr, SKIP: tl.constexpr,
    OUT: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The state after one chunk, and `b_all` times the chunk's decay.

    With MASKED, only the first `rows` tokens are valid. With STEPS, the products of queries and keys, and the
    gates, come from `prepare`, which masks tokens beyond the sequence's end.
    """
    dtype = p_k.dtype.element_ty
    o_t = tl.arange(0, CHUNK)
    o_k = tl.arange(0, BK)
    m_k = (o_t < rows)[:, None] & (o_k < K)[None, :]
    m_v = (o_t < rows)[:, None] & (o_v < V)[None, :]
    p_k += o_t[:, None] * s_kt + o_k[None, :]
    p_v += o_t[:, None] * s_vt + o_v[None, :]
    b_k = tl.load(p_k, mask=m_k, other=0.0) if MASKED else tl.load(p_k)
    b_v = tl.load(p_v, mask=m_v, other=0.0) if MASKED else tl.load(p_v)
    if STEPS:
        b_end = tl.load(p_gates + 3 * CHUNK + o_t)
        decay = tl.load(p_gates + 5 * CHUNK - 1)
    else:
        count = tl.minimum(rows, CHUNK)
        decay = tl.exp2(rate * count)
        b_end = tl.exp2(rate * tl.maximum(count - 1 - o_t, 0).to(tl.float32))
    if OUT:
        p_q += o_t[:, None] * s_qt + o_k[None, :]
        p_out += o_t[:, None] * s_ot + o_v[None, :]
        b_q = tl.load(p_q, mask=m_k, other=0.0) if MASKED else tl.load(p_q)
        if STEPS:
            b_p = tl.load(p_scores + o_t[:, None] * CHUNK + o_t[None, :]).to(tl.float32)
            b_w = tl.load(p_gates + o_t)
            b_hi = tl.load(p_gates + CHUNK + o_t)
            b_lo = tl.load(p_gates + 2 * CHUNK + o_t)
            b_x = tl.minimum(b_hi[None, :] - b_hi[:, None], 0.0) + (b_lo[None, :] - b_lo[:, None])
            b_x = tl.exp2(b_x) * (b_w * scale)[:, None]
            b_start = tl.load(p_gates + 4 * CHUNK + o_t) * scale
        else:
            b_p = tl.dot(b_k, tl.trans(b_q), input_precision="ieee")
            b_x = tl.exp2(rate * tl.maximum(o_t[None, :] - o_t[:, None], 0).to(tl.float32)) * scale
            b_x = tl.where(o_t[None, :] >= o_t[:, None], b_x, 0.0)
            b_start = tl.exp2(rate * (o_t + 1).to(tl.float32)) * scale
        b_p *= b_x
        if SKIP:
            b_p += tl.where(o_t[None, :] == o_t[:, None], skip, 0.0)
        b_o = tl.dot(b_s.to(dtype), tl.trans(b_q), input_precision="ieee") * b_start[None, :]
        b_o = tl.dot(tl.trans(b_v), b_p.to(dtype), acc=b_o, input_precision="ieee")
        b_o = tl.trans(b_o).to(dtype)
        if MASKED:
            tl.store(p_out, b_o, mask=m_v)
        else:
            tl.store(p_out, b_o)
    b_v = (b_v * b_end[:, None]).to(dtype)  # cheaper than scaling the keys, which have more elements
    b_s = tl.dot(tl.trans(b_v), b_k, acc=b_s * decay, input_precision="ieee")
    return b_s, b_all * decay


@triton.jit
def _walk_chunks(
    b_s, p_q, p_k, p_v, p_scores, p_gates, p_out, rate, skip, o_v, rows, scale,
    s_qt: tl.constexpr, s_kt: tl.constexpr, s_vt: tl.constexpr, H: tl.constexpr, G: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, CHUNK: tl.constexpr, STEPS: tl.constexpr,
    SKIP: tl.constexpr, OUT: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The state after `rows` tokens, and the total decay.

    If WHOLE and STAGES > 1, whole chunks run without masks.
    """
    b_all = tl.exp2(rate * 0.0)
    whole = rows // CHUNK * CHUNK
    if STAGES == 1 or not WHOLE:
        whole = 0
    for MASKED in tl.static_range(2):
        start, stop = (whole, rows) if MASKED else (0, whole)
        for i_t in tl.range(start, stop, CHUNK, num_stages=1 if MASKED else STAGES):
            b_s, b_all = _walk_chunk(
                b_s, b_all, p_q, p_k, p_v, p_scores, p_gates, p_out, rate, skip, o_v,
                rows - i_t if MASKED else CHUNK, scale,
                s_qt, s_kt, s_vt, H * V, K, V, BK, CHUNK, STEPS, SKIP, OUT, MASKED,
            )  # fmt: skip
            p_q += CHUNK * s_qt
            p_k += CHUNK * s_kt
            p_v += CHUNK * s_vt
            p_out += CHUNK * H * V
            p_scores += G * CHUNK * CHUNK
            p_gates += H * 5 * CHUNK
    return b_s, b_all


@triton.jit(do_not_specialize=["sequences"], do_not_specialize_on_alignment=TABLES)
def _walk(
    p_q, p_k, p_v, p_rate, p_skip, p_scores, p_gates, p_state, p_out, p_ends, p_sequences, p_cu_seqlens,
    p_read_slots, p_write_slots, p_has_initial_state, p_kept_slots,
    scale,
    s_slot,
    every, kept, sequences, first, length, most,
    s_qt: tl.constexpr, s_qh: tl.constexpr, s_kt: tl.constexpr, s_kh: tl.constexpr, s_vt: tl.constexpr,
    s_vh: tl.constexpr, H: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, CHUNK: tl.constexpr, STEPS: tl.constexpr, SKIP: tl.constexpr,
    KEEP: tl.constexpr, PASS: tl.constexpr, STAGES: tl.constexpr, KV: tl.constexpr,
):  # fmt: skip
    """Walk one segment of a sequence, for one head and `BV` rows of the head's state.

    With KEEP, checkpoints are written to their slots. For each split sequence, segment and head, `p_ends`
    holds B (for the first segment, the state after it) followed by the segment's decay.
    """
    i_h = tl.program_id(1)
    i_z, i_seg, i_n, i_c, row, rows, is_last, total = locate(
        p_sequences, p_cu_seqlens, sequences, first, length, most, CHUNK, PASS
    )
    read, write, has = load_slots(p_read_slots, p_write_slots, p_has_initial_state, i_n)
    o_k = tl.arange(0, BK)
    o_v = tl.program_id(0) * BV + tl.arange(0, BV)
    if write < 0:  # padding
        if i_seg == 0:
            clear_rows(p_out + (row * H + i_h) * V, total, o_v, H * V, V, CHUNK)
        return
    if PASS == 1:
        if i_seg > 0 and is_last:
            return
    if PASS == 2:
        if rows <= 0:
            return

    G: tl.constexpr = H // GROUP
    p_q += row * s_qt + i_h // GROUP * s_qh
    p_k += row * s_kt + i_h // GROUP * s_kh
    p_v += row * s_vt + i_h * s_vh
    p_out += (row * H + i_h) * V
    p_scores += (i_c * G + i_h // GROUP) * (CHUNK * CHUNK)
    p_gates += (i_c * H + i_h) * (5 * CHUNK)
    rate = tl.load(p_rate + i_h) * LOG2E
    if not STEPS:  # 2^-192 is 0 in float32
        rate = tl.maximum(rate, -192.0)
    skip = tl.load(p_skip + i_h).to(tl.float32) if SKIP else 0.0
    o_state = within_slot(i_h, o_v, o_k, V, K, KV)
    m_state = (o_v < V)[:, None] & (o_k < K)[None, :]
    WHOLE: tl.constexpr = K == BK and V % BV == 0
    if PASS != 0:
        BLOCKS: tl.constexpr = (V + BV - 1) // BV
        SEGMENT: tl.constexpr = (BLOCKS * BV + 1) * BK
        p_ends += (i_z * (most - 1) * H + i_h).to(tl.int64) * SEGMENT
        o_end = o_v[:, None] * BK + o_k[None, :]
    if PASS == 1:
        if i_seg > 0:
            p_end = p_ends + i_seg * (H * SEGMENT)
            b_s = tl.zeros((BV, BK), tl.float32)
            b_s, b_all = _walk_chunks(
                b_s, p_q, p_k, p_v, p_scores, p_gates, p_out, rate, skip, o_v, rows, scale,
                s_qt, s_kt, s_vt, H, G, K, V, BK, CHUNK, STEPS, SKIP, False, WHOLE, STAGES,
            )  # fmt: skip
            tl.store(p_end + o_end, b_s)
            if tl.program_id(0) == 0:
                tl.store(p_end + BLOCKS * BV * BK, b_all)
            return
    if PASS == 2:
        b_s = tl.load(p_ends + o_end)
        for i in tl.range(1, i_seg, num_stages=1):
            p_end = p_ends + i * (H * SEGMENT)
            b_s = b_s * tl.load(p_end + BLOCKS * BV * BK) + tl.load(p_end + o_end)
    else:
        m_read = (o_v < tl.where(has, tl.where(read >= 0, V, 0), 0))[:, None] & (o_k < K)[None, :]
        b_s = tl.load(p_state + read * s_slot + o_state, mask=m_read, other=0.0).to(tl.float32)
    if KEEP:
        start = (row - tl.load(p_cu_seqlens + i_n)).to(tl.int32)
        i_t = rows * 0
        b_all = tl.exp2(rate * 0.0)
        while i_t < rows:
            part = tl.minimum(every - (start + i_t) % every, rows - i_t)
            i_row = i_t.to(tl.int64)
            b_s, b_all = _walk_chunks(
                b_s, p_q + i_row * s_qt, p_k + i_row * s_kt, p_v + i_row * s_vt, p_scores, p_gates,
                p_out + i_row * (H * V), rate, skip, o_v, part, scale,
                s_qt, s_kt, s_vt, H, G, K, V, BK, CHUNK, STEPS, SKIP, True, WHOLE, STAGES,
            )  # fmt: skip
            i_t += part
            p_scores += tl.cdiv(part, CHUNK).to(tl.int64) * (G * CHUNK * CHUNK)
            p_gates += tl.cdiv(part, CHUNK).to(tl.int64) * (H * 5 * CHUNK)
            if (start + i_t) % every == 0:
                slot = tl.load(p_kept_slots + i_n.to(tl.int64) * kept + (start + i_t) // every - 1)
                m_kept = (o_v < tl.where(slot >= 0, V, 0))[:, None] & (o_k < K)[None, :]
                tl.store(p_state + slot * s_slot + o_state, b_s.to(p_state.dtype.element_ty), mask=m_kept)
    else:
        b_s, _ = _walk_chunks(
            b_s, p_q, p_k, p_v, p_scores, p_gates, p_out, rate, skip, o_v, rows, scale,
            s_qt, s_kt, s_vt, H, G, K, V, BK, CHUNK, STEPS, SKIP, True, WHOLE, STAGES,
        )  # fmt: skip
    if is_last:
        tl.store(p_state + write * s_slot + o_state, b_s.to(p_state.dtype.element_ty), mask=m_state)
    elif PASS == 1:
        tl.store(p_ends + o_end, b_s)


_launch_walk = Launcher(_walk)


def walk(operands: Operands, batch: StateBatch, chunks: Chunks, chunk: int, costs: Walk) -> None:
    """Run the scan over the chunks, in one launch, or in two if the time axis is split.

    With time steps, another launch first prepares all chunks.

    Args:
        operands: The call.
        batch: The batch.
        chunks: The batch's plan.
        chunk: Tokens per chunk.
        costs: The scan's key in `Fitted.walks`.
    """
    sequences = chunks.sequences.shape[0]
    heads, group, key_size, value_size = operands.sizes
    dtype, device = operands.v.dtype, operands.v.device
    has_steps, _, _, has_skip = operands.flags
    # Triton 3.6 miscompiled this kernel for blocks of 16 channels and 64 rows of a state. At that time, the
    # kernel scaled keys instead of values. Blocks of 32 channels avoid this.
    block_k, block_v = padded(key_size, 16 if has_steps else 32), padded(value_size, 16)
    large = has_large_shared_memory(device)
    if dtype == torch.float32:
        block_v, warps, stages = min(block_v, 16), 8, 1
    elif not large:
        block_v, warps, stages = min(block_v, 32), 4, 1
    elif block_k > 128:
        block_v, warps, stages = min(block_v, 64), 4, 2
    else:
        block_v, warps, stages = min(block_v, 64), 4, 4
    value_blocks = -(-value_size // block_v)
    segments = chunks.split(heads, device, costs) if large else Segments()
    ends = scores = gates = operands.rate
    if has_steps:
        scores, gates = prepare(operands, chunks, chunk)
    if segments.split:
        size = (value_blocks * block_v + 1) * block_k
        ends = scratch((segments.split, segments.most - 1, heads, size), torch.float32, device)
    kept_slots, *kept = kept_states(batch)
    slots = (batch.cu_seqlens, batch.read_slots, batch.write_slots, batch.has_initial_state, kept_slots)
    lengths = (segments.first * chunk, segments.length * chunk, segments.most)
    sizes = (heads, group, key_size, value_size, block_k, block_v, chunk)
    inputs = (operands.q, operands.k, operands.v, operands.rate, operands.skip, scores, gates)
    for number, programs in segments.programs(sequences):
        _launch_walk(
            (value_blocks, heads, programs),
            (*inputs, operands.state, operands.out, ends, chunks.sequences, *slots),
            (operands.scale, operands.state.stride(0), *kept, sequences, *lengths),
            (
                *(*operands.row_strides, *sizes, has_steps, has_skip, kept[0] > 0, number, stages),
                is_transposed(operands.state),
            ),
            num_warps=warps,
            num_stages=stages,
            **launch_options(dtype),
        )
