"""The scan over the chunks, in one launch, or in two if the time axis is split."""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN202, SIM102
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from switchrail.ops.batch import StateBatch
from switchrail.ops.delta_call import DeltaCall

from switchrail_kernels.alignment import is_aligned, is_transposed
from switchrail_kernels.checkpoints import kept_states
from switchrail_kernels.delta import hopper
from switchrail_kernels.delta.hopper_short import launch_scan_short
from switchrail_kernels.delta.solve import CHUNK
from switchrail_kernels.device import compute_capability, has_large_shared_memory, multiprocessors
from switchrail_kernels.launch import TABLES, Launcher, launch_options, padded
from switchrail_kernels.replay import scratch
from switchrail_kernels.segments import Chunks, Segments, clear_rows, locate
from switchrail_kernels.states import within_slot
from switchrail_kernels.tables import load_slots


@triton.jit
def _walk_chunk(
    b_s,
    p_q, p_k, p_from, p_v, p_inverse, p_scores, p_factors, p_out,
    o_v, rows,
    s_qt: tl.constexpr, s_kt: tl.constexpr, s_vt: tl.constexpr, HV: tl.constexpr, K: tl.constexpr,
    V: tl.constexpr, BK: tl.constexpr, CHANNELS: tl.constexpr, VALUES: tl.constexpr, OUT: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """The state after one chunk. With OUT, writes the output. With MASKED, only `rows` tokens are valid.

    The function computes the transposes of u and out, so that the state and values derived from it are left
    operands of products. Tensor cores can read left operands from registers.
    """
    dtype = p_k.dtype.element_ty
    o_t = tl.arange(0, CHUNK)
    o_k = tl.arange(0, BK)
    o_block = o_t[:, None] * CHUNK + o_t[None, :]
    o_rows = o_t[:, None]
    p_k += o_rows * s_kt + o_k[None, :]
    m_k = (o_rows < rows) & (o_k < K)[None, :]
    m_v = (o_rows < rows) & (o_v < V)[None, :]
    b_k = tl.load(p_k, mask=m_k, other=0.0) if MASKED else tl.load(p_k)
    if CHANNELS:
        p_from += o_rows * s_kt + o_k[None, :]
        b_f = tl.load(p_from, mask=m_k, other=0.0) if MASKED else tl.load(p_from)
    else:
        b_f = b_k
    b_inverse = tl.load(p_inverse + o_block)

    b_low = b_s.to(dtype)
    b_r = tl.dot(b_low, tl.trans(b_f), input_precision="ieee")
    if CHANNELS:
        b_decay = tl.load(p_factors + o_k)[None, :]
        b_r = (-b_r).to(dtype)
    else:
        b_decay = tl.load(p_factors + 3 * CHUNK)
        b_r = (b_r * -tl.load(p_factors + o_t)[None, :]).to(dtype)
    if VALUES:
        p_v += o_rows * s_vt + o_v[None, :]
        b_v = tl.load(p_v, mask=m_v, other=0.0) if MASKED else tl.load(p_v)
        b_u = tl.dot(tl.trans(b_v), tl.trans(b_inverse), input_precision="ieee")
        b_u = tl.dot(b_r, tl.trans(b_inverse), acc=b_u, input_precision="ieee")
    else:
        b_u = tl.dot(b_r, tl.trans(b_inverse), input_precision="ieee")
    if OUT:
        p_q += o_rows * s_qt + o_k[None, :]
        b_q = tl.load(p_q, mask=m_k, other=0.0) if MASKED else tl.load(p_q)
        b_o = tl.dot(b_low, tl.trans(b_q), input_precision="ieee")
        if not CHANNELS:
            b_o *= tl.load(p_factors + CHUNK + o_t)[None, :]
    b_uw = b_u if CHANNELS else b_u * tl.load(p_factors + 2 * CHUNK + o_t)[None, :]
    b_s = tl.dot(b_uw.to(dtype), b_k, acc=b_s * b_decay, input_precision="ieee")
    if OUT:
        b_scores = tl.load(p_scores + o_block)
        b_o = tl.dot(b_u.to(dtype), tl.trans(b_scores), acc=b_o, input_precision="ieee")
        b_o = tl.trans(b_o).to(dtype)
        p_out += o_rows * (HV * V) + o_v[None, :]
        if MASKED:
            tl.store(p_out, b_o, mask=m_v)
        else:
            tl.store(p_out, b_o)
    return b_s


@triton.jit
def _walk_chunks(
    b_s,
    p_q, p_k, p_from, p_v, p_inverse, p_scores, p_factors, p_out,
    o_v, rows,
    s_qt: tl.constexpr, s_kt: tl.constexpr, s_vt: tl.constexpr, HV: tl.constexpr, K: tl.constexpr,
    V: tl.constexpr, BK: tl.constexpr, FACTORS: tl.constexpr, CHANNELS: tl.constexpr, VALUES: tl.constexpr,
    OUT: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The state after `rows` tokens. If WHOLE and STAGES > 1, whole chunks run without masks."""
    whole = rows // CHUNK * CHUNK
    if STAGES == 1 or not WHOLE:
        whole = 0
    for MASKED in tl.static_range(2):
        start, stop = (whole, rows) if MASKED else (0, whole)
        for i_t in tl.range(start, stop, CHUNK, num_stages=1 if MASKED else STAGES):
            b_s = _walk_chunk(
                b_s, p_q, p_k, p_from, p_v, p_inverse, p_scores, p_factors, p_out, o_v,
                rows - i_t if MASKED else CHUNK,
                s_qt, s_kt, s_vt, HV, K, V, BK, CHANNELS, VALUES, OUT, MASKED,
            )  # fmt: skip
            p_q += CHUNK * s_qt
            p_k += CHUNK * s_kt
            p_from += CHUNK * s_kt
            p_v += CHUNK * s_vt
            p_out += CHUNK * HV * V
            p_inverse += HV * CHUNK * CHUNK
            p_scores += HV * CHUNK * CHUNK
            p_factors += HV * FACTORS
    return b_s


@triton.jit
def _walk_pieces(
    b_s,
    p_q, p_k, p_from, p_v, p_inverse, p_scores, p_factors, p_state, p_out, p_kept,
    o_v, o_state, m_k, rows, at, every, places,
    s_slot,
    s_qt: tl.constexpr, s_kt: tl.constexpr, s_vt: tl.constexpr, HV: tl.constexpr, K: tl.constexpr,
    V: tl.constexpr, BK: tl.constexpr, FACTORS: tl.constexpr, CHANNELS: tl.constexpr, WHOLE: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The state after `rows` tokens. The first of these tokens is token `at` of its sequence.

    After every `every` tokens of the sequence, the state is stored in the next slot at `p_kept`. The inputs
    per chunk (`p_inverse`, `p_scores` and `p_factors`) have `places` entries for each `every` tokens.
    """
    at_chunk = at // every * places + at % every // CHUNK
    for i_p in tl.range(at // every, tl.cdiv(at + rows, every), num_stages=1):
        start = tl.maximum(i_p * every, at)
        stop = tl.minimum(i_p * every + every, at + rows)
        i_c = (i_p * places + (start - i_p * every) // CHUNK - at_chunk).to(tl.int64)
        i_t = (start - at).to(tl.int64)
        b_s = _walk_chunks(
            b_s, p_q + i_t * s_qt, p_k + i_t * s_kt, p_from + i_t * s_kt, p_v + i_t * s_vt,
            p_inverse + i_c * (HV * CHUNK * CHUNK), p_scores + i_c * (HV * CHUNK * CHUNK),
            p_factors + i_c * (HV * FACTORS), p_out + i_t * (HV * V), o_v, stop - start,
            s_qt, s_kt, s_vt, HV, K, V, BK, FACTORS, CHANNELS, True, True, WHOLE, STAGES,
        )  # fmt: skip
        if stop == i_p * every + every:
            slot = tl.load(p_kept + i_p)
            m_kept = (o_v < tl.where(slot >= 0, V, 0))[:, None] & m_k[None, :]
            tl.store(p_state + slot * s_slot + o_state, b_s.to(p_state.dtype.element_ty), mask=m_kept)
    return b_s


@triton.jit(do_not_specialize=["sequences"], do_not_specialize_on_alignment=TABLES)
def _scan(
    p_q, p_k, p_from, p_v, p_inverse, p_scores, p_factors, p_state, p_out, p_ends, p_maps, p_sequences,
    p_cu_seqlens, p_read_slots, p_write_slots, p_has_initial_state, p_kept_slots,
    s_kept,
    every,
    s_slot,
    sequences, first, length, most, places,
    s_qt: tl.constexpr, s_qh: tl.constexpr, s_kt: tl.constexpr, s_kh: tl.constexpr, s_vt: tl.constexpr,
    s_vh: tl.constexpr, HV: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, FACTORS: tl.constexpr, CHANNELS: tl.constexpr, PASS: tl.constexpr,
    KEEP: tl.constexpr, STAGES: tl.constexpr, KV: tl.constexpr,
):  # fmt: skip
    """Scan a segment of a sequence, for one value head and `BV` rows of the head's state.

    A segment maps the state S before it to S M + B. In pass 1, the programs beyond the state's last row scan
    rows of M. For each split sequence, segment and value head, `p_ends` holds B (for the first segment, the
    state after it) followed by memory for a state, and `p_maps` holds M.
    """
    i_b = tl.program_id(0)
    i_hv = tl.program_id(1)
    i_z, i_seg, i_n, i_c, row, rows, is_last, total = locate(
        p_sequences, p_cu_seqlens, sequences, first, length, most, CHUNK, PASS
    )
    read, write, has = load_slots(p_read_slots, p_write_slots, p_has_initial_state, i_n)

    VALUE_BLOCKS: tl.constexpr = (V + BV - 1) // BV
    o_k = tl.arange(0, BK)
    o_v = i_b * BV + tl.arange(0, BV)
    if write < 0:  # padding
        if i_seg == 0 and i_b < VALUE_BLOCKS:
            clear_rows(p_out + (row * HV + i_hv) * V, total, o_v, HV * V, V, CHUNK)
        return

    if PASS == 1:
        if i_seg == 0:
            if i_b >= VALUE_BLOCKS:
                return
        elif is_last:
            return
    if PASS == 2:
        if rows <= 0:
            return
    i_h = i_hv // GROUP
    p_q += row * s_qt + i_h * s_qh
    p_k += row * s_kt + i_h * s_kh
    p_from += row * s_kt + i_h * s_kh
    p_v += row * s_vt + i_hv * s_vh
    p_out += (row * HV + i_hv) * V
    p_inverse += (i_c * HV + i_hv) * (CHUNK * CHUNK)
    p_scores += (i_c * HV + i_hv) * (CHUNK * CHUNK)
    p_factors += (i_c * HV + i_hv) * FACTORS

    o_state = within_slot(i_hv, o_v, o_k, V, K, KV)
    m_state = (o_v < V)[:, None] & (o_k < K)[None, :]
    WHOLE: tl.constexpr = K == BK and V % BV == 0
    COMPOSE: tl.constexpr = "ieee" if p_k.dtype.element_ty == tl.float32 else "tf32x3"
    SEGMENT: tl.constexpr = 2 * VALUE_BLOCKS * BV * BK
    if PASS != 0:
        segment = (i_z * (most - 1) * HV + i_hv).to(tl.int64)
        p_ends += segment * SEGMENT
        p_maps += segment * (BK * BK)
        s_segment = HV * SEGMENT
        s_map = HV * BK * BK
        o_segment = o_v[:, None] * BK + o_k[None, :]
    if PASS == 1:
        if i_seg > 0:
            if i_b < VALUE_BLOCKS:
                b_s = tl.zeros((BV, BK), tl.float32)
                b_s = _walk_chunks(
                    b_s, p_q, p_k, p_from, p_v, p_inverse, p_scores, p_factors, p_out, o_v, rows,
                    s_qt, s_kt, s_vt, HV, K, V, BK, FACTORS, CHANNELS, True, False, WHOLE, STAGES,
                )  # fmt: skip
                tl.store(p_ends + i_seg * s_segment + o_segment, b_s)
            else:
                o_m = (o_v - VALUE_BLOCKS * BV)[:, None]
                b_s = tl.where(o_m == o_k[None, :], 1.0, 0.0)
                b_s = _walk_chunks(
                    b_s, p_q, p_k, p_from, p_v, p_inverse, p_scores, p_factors, p_out, o_v, rows,
                    s_qt, s_kt, s_vt, HV, K, V, BK, FACTORS, CHANNELS, False, False, WHOLE, STAGES,
                )  # fmt: skip
                tl.store(p_maps + i_seg * s_map + o_m * BK + o_k[None, :], b_s)
            return
    if PASS == 2:
        # All of M would not fit in shared memory. So M is loaded in blocks of rows, each with the matching
        # columns of the previous state.
        p_from_end = p_ends
        p_mine = p_ends + (i_seg - 1) * s_segment + VALUE_BLOCKS * BV * BK
        b_s = tl.load(p_ends + o_segment)
        for i in tl.range(1, i_seg, num_stages=1):
            p_map = p_maps + i * s_map
            b_s = tl.load(p_ends + i * s_segment + o_segment)
            for i_k in tl.range(0, BK, 16, num_stages=STAGES):
                o_m = i_k + tl.arange(0, 16)
                b_left = tl.load(p_from_end + o_v[:, None] * BK + o_m[None, :])
                b_m = tl.load(p_map + o_m[:, None] * BK + o_k[None, :])
                b_s = tl.dot(b_left, b_m, acc=b_s, input_precision=COMPOSE)
            p_from_end = p_mine
            tl.store(p_mine + o_segment, b_s)
            tl.debug_barrier()
    else:
        m_read = (o_v < tl.where(has, tl.where(read >= 0, V, 0), 0))[:, None] & (o_k < K)[None, :]
        b_s = tl.load(p_state + read * s_slot + o_state, mask=m_read, other=0.0).to(tl.float32)
    if KEEP:
        at = (row - tl.load(p_cu_seqlens + i_n)).to(tl.int32)
        b_s = _walk_pieces(
            b_s, p_q, p_k, p_from, p_v, p_inverse, p_scores, p_factors, p_state, p_out,
            p_kept_slots + i_n.to(tl.int64) * s_kept, o_v, o_state, o_k < K, rows, at, every, places, s_slot,
            s_qt, s_kt, s_vt, HV, K, V, BK, FACTORS, CHANNELS, WHOLE, STAGES,
        )  # fmt: skip
    else:
        b_s = _walk_chunks(
            b_s, p_q, p_k, p_from, p_v, p_inverse, p_scores, p_factors, p_out, o_v, rows,
            s_qt, s_kt, s_vt, HV, K, V, BK, FACTORS, CHANNELS, True, True, WHOLE, STAGES,
        )  # fmt: skip
    if is_last:
        tl.store(p_state + write * s_slot + o_state, b_s.to(p_state.dtype.element_ty), mask=m_state)
    elif PASS == 1:
        tl.store(p_ends + o_segment, b_s)


_launch_scan = Launcher(_scan)


class Prepared(NamedTuple):
    """The scan's inputs for all chunks. They don't depend on a state.

    Attributes:
        read: [T, H, K], the call's q. With decays per channel [T, HV, K]: q, normalised if the layer says so,
            times the scale and the decay from the chunk's start.
        write: [T, H, K], the call's k. With decays per channel [T, HV, K]: k, normalised likewise, times the
            decay to the chunk's end.
        origin: [T, H, K], the call's k. With decays per channel [T, HV, K]: k, normalised likewise, times the
            decay from the chunk's start.
        inverse: T, [chunks * HV, 32, 32].
        scores: P, [chunks * HV, 32, 32].
        factors: [chunks * HV, factors] float32: the tokens' factors for origin, read and write, then the
            chunk's decay; with decays per channel, only the chunk's decay.
    """

    read: torch.Tensor
    write: torch.Tensor
    origin: torch.Tensor
    inverse: torch.Tensor
    scores: torch.Tensor
    factors: torch.Tensor


def scan(call: DeltaCall, batch: StateBatch, chunks: Chunks, prepared: Prepared, *, channels: bool) -> None:
    """Run the scan over the chunks, in one launch, or in two if the time axis is split.

    Args:
        call: The call.
        batch: The batch.
        chunks: The plan.
        prepared: The scan's inputs.
        channels: Whether each channel has a decay of its own.
    """
    read, write, origin, inverse, scores, factors = prepared
    v, out, state = call.v, call.out, call.layer.state
    _, heads, key_size = write.shape
    _, value_heads, value_size = v.shape
    block_k, block_v = padded(key_size, 16), padded(value_size, 16)
    sequences = chunks.sequences.shape[0]
    large = has_large_shared_memory(v.device)
    transposed = is_transposed(state)
    is_hopper = (
        compute_capability(v.device) == (9, 0)
        and v.dtype != torch.float32
        and block_k == 128
        and value_size >= 64
        and key_size % 8 == value_size % 8 == 0  # each copy moves 16 bytes
        and chunks.segments is not None  # None if checkpoints split blocks
        and all(is_aligned(tensor) for tensor in (read, write, origin, v))
        and not transposed
    )
    segments = Segments()
    if block_k <= 128 and large:
        segments = chunks.split(value_heads, v.device, "delta")
    kept, every, s_kept = kept_states(batch)
    slots = (batch.cu_seqlens, batch.read_slots, batch.write_slots, batch.has_initial_state)
    strides = (*read.stride()[:2], *write.stride()[:2], *v.stride()[:2])
    items = sequences * value_heads * (value_size // 64)
    are_many = items >= _MANY * multiprocessors(v.device)
    is_plain = not (channels or segments.split)
    if (
        is_hopper
        and is_plain
        and are_many
        and chunks.ahead
        and not (every or value_size % 64)
        and key_size == block_k
        and state.dtype == torch.float32
        and is_aligned(state)
        and state.stride(0) % 16 == 0  # so that the compiler knows the alignment of all states
    ):
        launch_scan_short(
            (_RESIDENT * multiprocessors(v.device), 1, 1),
            (read, write, v, inverse, scores, factors, state, out, chunks.sequences, *slots),
            (state.stride(0), items),
            (*strides, value_heads, value_heads // heads, value_size, block_k, 64, chunks.ahead + 1),
            num_warps=4,
        )
        return
    launch = hopper.launch_scan if is_hopper else _launch_scan
    options = launch_options(v.dtype)
    if is_hopper:
        # If there are many programs, larger ones are faster, since more rows share a program's inputs. If
        # there are few, smaller ones are faster, since each has less work.
        running = chunks.abreast * value_heads * -(-value_size // 128)
        is_few = running < multiprocessors(v.device) or segments.split > 0
        is_few |= chunks.are_short and not channels
        warps, stages = 4 if is_few or block_v < 128 else 8, 4
        block_v = 16 * warps
        if chunks.are_short and is_plain and (chunks.are_single or are_many):
            # Three programs per multiprocessor hide each other's latency.
            stages, options = 2 if chunks.are_single else 3, {"maxnreg": 168}
        if channels and segments.split:
            stages = 3  # two programs per multiprocessor
    elif v.dtype == torch.float32:
        block_v, warps, stages = min(block_v, 16), 8, 1
    elif not large:
        block_v, warps, stages = (min(block_v, 32), 4, 1) if block_k > 128 else (min(block_v, 64), 4, 2)
    else:
        block_v, warps, stages = min(block_v, 64), 4, 3
        if block_k <= 128:
            options = {"maxnreg": 168}  # three programs per multiprocessor
    value_blocks, key_blocks = -(-value_size // block_v), -(-block_k // block_v)
    ends, maps = factors, inverse
    if segments.split:
        shape = (segments.split, segments.most - 1, value_heads)
        ends = scratch((*shape, 2 * value_blocks * block_v, block_k), torch.float32, v.device)
        kind = torch.bfloat16 if is_hopper else torch.float32
        maps = scratch((*shape, 3 if is_hopper else 1, block_k, block_k), kind, v.device)
    walked = (read, write, origin, v, inverse, scores, factors)
    tensors = (*walked, state, out, ends, maps, chunks.sequences, *slots, kept)
    lengths = (segments.first * CHUNK.value, segments.length * CHUNK.value, segments.most)
    numbers = (s_kept, every, state.stride(0), sequences, *lengths, *(() if is_hopper else (chunks.places,)))
    sizes = (value_heads, value_heads // heads, key_size, value_size, block_k, block_v)
    for number, programs in segments.programs(sequences):
        blocks = value_blocks + key_blocks if number == 1 else value_blocks
        launch(
            (blocks, value_heads, programs),
            tensors,
            numbers,
            (
                *(*strides, *sizes, factors.shape[1], channels, number, every > 0, stages),
                *(() if is_hopper else (transposed,)),
            ),
            num_warps=warps,
            num_stages=stages,
            **options,
        )


_RESIDENT = 2
"""Programs of `launch_scan_short` that run at the same time on a multiprocessor."""

_MANY = 4 * _RESIDENT
"""The minimum number of items per multiprocessor for `launch_scan_short`."""

__all__ = ["Prepared", "scan"]
