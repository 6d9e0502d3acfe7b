"""The scan over the chunks on Hopper: like `scan`, for 16-bit inputs, K from 65 to 128, and V >= 64.

Each warpgroup of a program has 64 rows of the state. With two of them, the inputs that all rows share are
read half as often as with one. A chunk takes three products in sequence: S with k and q, then u, then the
new state. The product P u runs together with the third. The program stores the previous chunk's output during
the first product, and starts to load a later chunk during the third product and P u.

When segments are composed, M and S are each split into a sum of three bfloat16 matrices. Six of the nine
products of these matrices give about the precision of float32.
"""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN201, ANN202, SIM102
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from switchrail_kernels.delta.solve import CHUNK
from switchrail_kernels.launch import TABLES, Launcher
from switchrail_kernels.segments import locate

# These functions' names in Triton 3.6 differ from those in later versions.
load = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
_barrier = getattr(gl, "barrier", None) or gl.thread_barrier


@gluon.jit
def load_chunk(
    s_b, s_k, s_v, s_t, s_p, s_f,
    p_q, p_k, p_from, p_v, p_inverse, p_scores, p_factors,
    i_b, rows,
    s_qt: gl.constexpr, s_kt: gl.constexpr, s_vt: gl.constexpr, K: gl.constexpr, V: gl.constexpr,
    BK: gl.constexpr, BV: gl.constexpr, CHANNELS: gl.constexpr, VALUES: gl.constexpr, OUT: gl.constexpr,
):  # fmt: skip
    """Start loading the first `rows` tokens of a chunk (none if 0 or less). Its other rows become zeros."""
    WARPS: gl.constexpr = gl.num_warps()
    lk: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BK, BK // 8], [WARPS, 1], [1, 0])
    lv: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BV, BV // 8], [WARPS, 1], [1, 0])
    lt: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [WARPS, 1], [1, 0])
    BOTH: gl.constexpr = 2 * CHUNK if OUT else CHUNK
    SIZE: gl.constexpr = BK if CHANNELS else 4 * CHUNK
    o_k = gl.arange(0, BK, layout=gl.SliceLayout(0, lk))[None, :]
    o_r = gl.arange(0, BOTH, layout=gl.SliceLayout(1, lk))[:, None]
    m = o_r % CHUNK < rows
    if K != BK:
        m = m & (o_k < K)
    if OUT:
        p_b = gl.where(o_r < CHUNK, p_from + o_r * s_kt + o_k, p_q + (o_r - CHUNK) * s_qt + o_k)
    else:
        p_b = p_from + o_r * s_kt + o_k
    load(s_b, p_b, mask=m)
    if CHANNELS:
        o_r = gl.arange(0, CHUNK, layout=gl.SliceLayout(1, lk))[:, None]
        m = o_r < rows
        if K != BK:
            m = m & (o_k < K)
        load(s_k, p_k + o_r * s_kt + o_k, mask=m)
    if VALUES:
        o_r = gl.arange(0, CHUNK, layout=gl.SliceLayout(1, lv))[:, None]
        o_v = i_b * BV + gl.arange(0, BV, layout=gl.SliceLayout(0, lv))[None, :]
        m = o_r < rows
        if V % BV != 0:
            m = m & (o_v < V)
        load(s_v, p_v + o_r * s_vt + o_v, mask=m)
    o_t = gl.arange(0, CHUNK, layout=gl.SliceLayout(1, lt))[:, None] * CHUNK
    o_t += gl.arange(0, CHUNK, layout=gl.SliceLayout(0, lt))[None, :]
    m = o_t < rows * CHUNK
    load(s_t, p_inverse + o_t, mask=m)
    if OUT:
        load(s_p, p_scores + o_t, mask=m)
    o_f = gl.arange(0, SIZE, layout=gl.BlockedLayout([1], [32], [WARPS], [0]))
    load(s_f, p_factors + o_f, mask=o_f < rows * SIZE)
    async_copy.commit_group()


@gluon.jit
def start_chunk(
    b_s,
    s_b, s_k, s_v, s_t, s_p, f, s_done,
    p_done, m_done,
    BK: gl.constexpr, BV: gl.constexpr, CHANNELS: gl.constexpr, VALUES: gl.constexpr, OUT: gl.constexpr,
):  # fmt: skip
    """Start the products of a chunk whose inputs are loaded.

    Returns the new state and P u, whose products are still running, and the output without P u. With OUT,
    also stores the rows `m_done` of the previous chunk's output, [CHUNK, BV] at `s_done`, to `p_done`.
    """
    WARPS: gl.constexpr = gl.num_warps()
    dtype: gl.constexpr = s_b.dtype
    BOTH: gl.constexpr = 2 * CHUNK if OUT else CHUNK
    narrow: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, CHUNK, 16])
    both: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BOTH, 16])
    wide: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BK, 16])
    left: gl.constexpr = gl.DotOperandLayout(0, narrow, 2)
    left_both: gl.constexpr = gl.DotOperandLayout(0, both, 2)
    left_wide: gl.constexpr = gl.DotOperandLayout(0, wide, 2)
    columns: gl.constexpr = gl.SliceLayout(0, narrow)
    lv: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BV, BV // 8], [WARPS, 1], [1, 0])
    b_zero = gl.zeros([BV, CHUNK], gl.float32, narrow)
    b_zeros = gl.zeros([BV, BOTH], gl.float32, both)
    b_low = gl.convert_layout(b_s.to(dtype), left_both)
    b_r = warpgroup_mma(b_low, s_b.permute([1, 0]), b_zeros, use_acc=False, is_async=True)
    b_x = b_zero
    if VALUES:
        b_x = s_v.permute([1, 0]).load(narrow).to(gl.float32)
    if OUT:
        gl.store(p_done, s_done.load(lv), mask=m_done)
    b_r = warpgroup_mma_wait(0, deps=(b_r,))
    b_o = b_zero
    b_p = b_zero
    if OUT:
        b_r, b_o = b_r.reshape([BV, 2, CHUNK]).permute([0, 2, 1]).split()
        b_r = gl.convert_layout(b_r, narrow, assert_trivial=True)
        b_o = gl.convert_layout(b_o, narrow, assert_trivial=True)
    if CHANNELS:
        b_x -= b_r
    else:
        b_x += b_r * -f.slice(0, CHUNK).load(columns)[None, :]
    b_x = gl.convert_layout(b_x.to(dtype), left)
    b_u = warpgroup_mma(b_x, s_t.permute([1, 0]), b_zero, use_acc=False, is_async=True)
    if CHANNELS:
        b_s *= f.load(gl.SliceLayout(0, wide))[None, :]
    else:
        b_s *= f.slice(3 * CHUNK, 1).load(gl.SliceLayout(0, wide))[None, :]
        if OUT:
            b_o *= f.slice(CHUNK, CHUNK).load(columns)[None, :]
    b_u = warpgroup_mma_wait(0, deps=(b_u,))
    if CHANNELS:
        s_write = s_k
        b_w = b_u
    else:
        s_write = s_b.slice(0, CHUNK)
        b_w = b_u * f.slice(2 * CHUNK, CHUNK).load(columns)[None, :]
    b_s = warpgroup_mma(gl.convert_layout(b_w.to(dtype), left_wide), s_write, b_s, is_async=True)
    if OUT:
        b_u = gl.convert_layout(b_u.to(dtype), left)
        b_p = warpgroup_mma(b_u, s_p.permute([1, 0]), b_zero, use_acc=False, is_async=True)
    return b_s, b_p, b_o


@gluon.jit
def _walk(
    b_s,
    p_q, p_k, p_from, p_v, p_inverse, p_scores, p_factors, p_state, p_out, p_kept,
    i_b, rows, until, every,
    s_slot,
    s_qt: gl.constexpr, s_kt: gl.constexpr, s_vt: gl.constexpr, HV: gl.constexpr, K: gl.constexpr,
    V: gl.constexpr, BK: gl.constexpr, BV: gl.constexpr, FACTORS: gl.constexpr, CHANNELS: gl.constexpr,
    VALUES: gl.constexpr, OUT: gl.constexpr, KEEP: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The state after `rows` tokens. With OUT, also writes the tokens' output.

    With KEEP, the states after `until` tokens and after each further `every` tokens are written to the slots
    at `p_kept`.
    """
    WARPS: gl.constexpr = gl.num_warps()
    dtype: gl.constexpr = p_k.dtype.element_ty
    BOTH: gl.constexpr = 2 * CHUNK if OUT else CHUNK
    SIZE: gl.constexpr = BK if CHANNELS else 4 * CHUNK
    wide: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BK, 16])
    lv: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BV, BV // 8], [WARPS, 1], [1, 0])
    whole: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    square: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=64, element_bitwidth=16, rank=2)
    s_b = gl.allocate_shared_memory(dtype, [STAGES, BOTH, BK], whole)
    s_t = gl.allocate_shared_memory(dtype, [STAGES, CHUNK, CHUNK], square)
    s_f = gl.allocate_shared_memory(gl.float32, [STAGES, SIZE], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    s_k = s_b
    s_v = s_b
    s_p = s_t
    if CHANNELS:
        s_k = gl.allocate_shared_memory(dtype, [STAGES, CHUNK, BK], whole)
    if VALUES:
        s_v = gl.allocate_shared_memory(dtype, [STAGES, CHUNK, BV], whole)
    if OUT:
        s_p = gl.allocate_shared_memory(dtype, [STAGES, CHUNK, CHUNK], square)
    o_r = gl.arange(0, CHUNK, layout=gl.SliceLayout(1, lv))[:, None]
    o_v = i_b * BV + gl.arange(0, BV, layout=gl.SliceLayout(0, lv))[None, :]
    p_to = p_out + o_r * (HV * V) + o_v - CHUNK * HV * V
    m_v = (o_r >= 0) & (o_v < V)
    for i in gl.static_range(STAGES - 1):
        load_chunk(
            s_b.index(i), s_k.index(i), s_v.index(i), s_t.index(i), s_p.index(i), s_f.index(i),
            p_q, p_k, p_from, p_v, p_inverse, p_scores, p_factors, i_b, rows - i * CHUNK,
            s_qt, s_kt, s_vt, K, V, BK, BV, CHANNELS, VALUES, OUT,
        )  # fmt: skip
        p_q += CHUNK * s_qt
        p_k += CHUNK * s_kt
        p_from += CHUNK * s_kt
        p_v += CHUNK * s_vt
        p_inverse += HV * CHUNK * CHUNK
        p_scores += HV * CHUNK * CHUNK
        p_factors += HV * FACTORS
    now = 0
    free = STAGES - 1
    for i_t in range(0, rows, CHUNK):
        async_copy.wait_group(STAGES - 2)
        b_s, b_p, b_o = start_chunk(  # also stores the previous chunk's output
            b_s, s_b.index(now), s_k.index(now), s_v.index(now), s_t.index(now), s_p.index(now),
            s_f.index(now), s_v.index(free), p_to, m_v & (i_t > 0), BK, BV, CHANNELS, VALUES, OUT,
        )  # fmt: skip
        p_to += CHUNK * HV * V
        load_chunk(
            s_b.index(free), s_k.index(free), s_v.index(free), s_t.index(free), s_p.index(free),
            s_f.index(free), p_q, p_k, p_from, p_v, p_inverse, p_scores, p_factors, i_b,
            rows - i_t - (STAGES - 1) * CHUNK,
            s_qt, s_kt, s_vt, K, V, BK, BV, CHANNELS, VALUES, OUT,
        )  # fmt: skip
        p_q += CHUNK * s_qt
        p_k += CHUNK * s_kt
        p_from += CHUNK * s_kt
        p_v += CHUNK * s_vt
        p_inverse += HV * CHUNK * CHUNK
        p_scores += HV * CHUNK * CHUNK
        p_factors += HV * FACTORS
        if OUT:
            b_s, b_p = warpgroup_mma_wait(0, deps=(b_s, b_p))
            s_v.index(now).permute([1, 0]).store((b_o + b_p).to(dtype))
        else:
            b_s = warpgroup_mma_wait(0, deps=(b_s,))
        if KEEP:
            until -= CHUNK
            if until == 0:
                if rows - i_t >= CHUNK:
                    slot = gl.load(p_kept)
                    o_s = i_b * BV + gl.arange(0, BV, layout=gl.SliceLayout(1, wide))[:, None]
                    o_k = gl.arange(0, BK, layout=gl.SliceLayout(0, wide))[None, :]
                    p_to_state = p_state + slot * s_slot + o_s * K + o_k
                    m_state = (o_s < gl.where(slot >= 0, V, 0)) & (o_k < K)
                    gl.store(p_to_state, b_s.to(p_state.dtype.element_ty), mask=m_state)
                p_kept += 1
                until = every
        now = gl.where(now == STAGES - 1, 0, now + 1)
        free = gl.where(free == STAGES - 1, 0, free + 1)
    async_copy.wait_group(0)
    if OUT:
        last = rows - (gl.cdiv(rows, CHUNK) - 1) * CHUNK
        gl.store(p_to, s_v.index(free).load(lv), mask=m_v & (o_r < last))
    return b_s


@gluon.jit
def _part(b_s, NUMBER: gl.constexpr):
    """Part `NUMBER` of the three bfloat16 matrices that add up to `b_s`."""
    for _ in gl.static_range(NUMBER):
        b_s -= b_s.to(gl.bfloat16).to(gl.float32)
    return b_s.to(gl.bfloat16)


@gluon.jit
def _load_part(s_m, p_map, rows, BK: gl.constexpr):
    """Start loading half of the columns of a part of M, for the first `rows` rows."""
    WARPS: gl.constexpr = gl.num_warps()
    HALF: gl.constexpr = BK // 2
    lk: gl.constexpr = gl.BlockedLayout([1, 8], [256 // HALF, HALF // 8], [WARPS, 1], [1, 0])
    o_m = gl.arange(0, BK, layout=gl.SliceLayout(1, lk))[:, None]
    o_k = gl.arange(0, HALF, layout=gl.SliceLayout(0, lk))[None, :]
    load(s_m, p_map + o_m * BK + o_k, mask=o_m < rows)
    async_copy.commit_group()


@gluon.jit
def _compose(
    b_s,
    p_ends, p_maps, p_mine,
    segments,
    s_segment, s_map,
    BK: gl.constexpr, BV: gl.constexpr,
):  # fmt: skip
    """Replace S by S M + B for one segment after another.

    The new S is written to memory in two halves of its columns, and read back.
    """
    WARPS: gl.constexpr = gl.num_warps()
    HALF: gl.constexpr = BK // 2
    wide: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BK, 16])
    half: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, HALF, 16])
    left: gl.constexpr = gl.DotOperandLayout(0, half, 2)
    shared: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    s_m = gl.allocate_shared_memory(gl.bfloat16, [3, BK, HALF], shared)
    o_half = gl.arange(0, BV, layout=gl.SliceLayout(1, half))[:, None] * BK
    o_half += gl.arange(0, HALF, layout=gl.SliceLayout(0, half))[None, :]
    o_wide = gl.arange(0, BV, layout=gl.SliceLayout(1, wide))[:, None] * BK
    o_wide += gl.arange(0, BK, layout=gl.SliceLayout(0, wide))[None, :]
    p_maps += s_map
    for i in gl.static_range(2):
        _load_part(s_m.index(i), p_maps + i * BK * BK, BK * (segments - 1), BK)
    for i in range(1, segments):
        p_ends += s_segment
        for j in gl.static_range(6):  # parts of M, first for one half of the columns, then for the other
            if j % 3 == 0:
                b_new = gl.load(p_ends + o_half + j // 3 * HALF)
            async_copy.wait_group(1)
            if j == 4:
                p_maps += s_map
            _load_part(
                s_m.index((j + 2) % 3),
                p_maps + ((j + 2) % 3 * BK * BK + (j + 2) % 6 // 3 * HALF),
                BK * (segments - i - (j >= 4)),
                BK,
            )
            for k in gl.static_range(3 - j % 3):
                b_part = gl.convert_layout(_part(b_s, k), left)
                b_new = warpgroup_mma(b_part, s_m.index(j % 3), b_new, is_async=True)
                b_new = warpgroup_mma_wait(0, deps=(b_new,))
            if j % 3 == 2:
                gl.store(p_mine + o_half + j // 3 * HALF, b_new)
        _barrier()
        b_s = gl.load(p_mine + o_wide)
    async_copy.wait_group(0)
    return b_s


@gluon.jit(do_not_specialize=["sequences"], do_not_specialize_on_alignment=TABLES)
def _scan(
    p_q, p_k, p_from, p_v, p_inverse, p_scores, p_factors, p_state, p_out, p_ends, p_maps, p_sequences,
    p_cu_seqlens, p_read_slots, p_write_slots, p_has_initial_state, p_kept_slots,
    s_kept,
    every,
    s_slot,
    sequences, first, length, most,
    s_qt: gl.constexpr, s_qh: gl.constexpr, s_kt: gl.constexpr, s_kh: gl.constexpr, s_vt: gl.constexpr,
    s_vh: gl.constexpr, HV: gl.constexpr, GROUP: gl.constexpr, K: gl.constexpr, V: gl.constexpr,
    BK: gl.constexpr, BV: gl.constexpr, FACTORS: gl.constexpr, CHANNELS: gl.constexpr, PASS: gl.constexpr,
    KEEP: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Scan a segment of a sequence, for one value head and `BV` rows of the head's state.

    A segment maps the state S before it to S M + B. In pass 1, the programs beyond the state's last row scan
    rows of M. For each split sequence, segment and value head, `p_ends` holds B (for the first segment, the
    state after it) followed by memory for a state, and `p_maps` holds the three parts of M.
    """
    WARPS: gl.constexpr = gl.num_warps()
    wide: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BK, 16])
    lv: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BV, BV // 8], [WARPS, 1], [1, 0])
    VALUE_BLOCKS: gl.constexpr = (V + BV - 1) // BV
    i_b = gl.program_id(0)
    i_hv = gl.program_id(1)
    i_z, i_seg, i_n, i_c, row, rows, is_last, total = locate(
        p_sequences, p_cu_seqlens, sequences, first, length, most, CHUNK, PASS
    )
    read = gl.load(p_read_slots + i_n)
    write = gl.load(p_write_slots + i_n)
    has = gl.load(p_has_initial_state + i_n)
    if write < 0:  # padding
        if i_seg == 0 and i_b < VALUE_BLOCKS:
            o_r = gl.arange(0, CHUNK, layout=gl.SliceLayout(1, lv))[:, None]
            o_c = i_b * BV + gl.arange(0, BV, layout=gl.SliceLayout(0, lv))[None, :]
            b_zero = gl.zeros([CHUNK, BV], p_out.dtype.element_ty, lv)
            for i_t in range(0, total, CHUNK):
                p_row = p_out + ((row + i_t + o_r) * HV + i_hv) * V + o_c
                gl.store(p_row, b_zero, mask=(i_t + o_r < total) & (o_c < V))
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
    p_state += i_hv * V * K
    until = 0
    if KEEP:
        at = (row - gl.load(p_cu_seqlens + i_n)).to(gl.int32)
        p_kept_slots += i_n.to(gl.int64) * s_kept + at // every
        until = every - at % every

    o_k = gl.arange(0, BK, layout=gl.SliceLayout(0, wide))[None, :]
    o_v = (i_b * BV + gl.arange(0, BV, layout=gl.SliceLayout(1, wide)))[:, None]
    m_state = (o_v < V) & (o_k < K)
    HALF: gl.constexpr = VALUE_BLOCKS * BV * BK
    MAP: gl.constexpr = 3 * BK * BK
    if PASS != 0:
        segment = i_z * (most - 1) * HV + i_hv
        p_ends += segment.to(gl.int64) * (2 * HALF)
        p_maps += segment.to(gl.int64) * MAP
    if PASS == 1:
        if i_seg > 0:
            if i_b < VALUE_BLOCKS:
                b_s = gl.zeros([BV, BK], gl.float32, wide)
                b_s = _walk(
                    b_s, p_q, p_k, p_from, p_v, p_inverse, p_scores, p_factors, p_state, p_out, p_kept_slots,
                    i_b, rows, until, every, s_slot, s_qt, s_kt, s_vt, HV, K, V, BK, BV, FACTORS, CHANNELS,
                    True, False, False, STAGES,
                )  # fmt: skip
                gl.store(p_ends + i_seg * (HV * 2 * HALF) + o_v * BK + o_k, b_s)
            else:
                o_m = o_v - VALUE_BLOCKS * BV
                b_s = gl.where(o_m == o_k, 1.0, 0.0)
                b_s = _walk(
                    b_s, p_q, p_k, p_from, p_v, p_inverse, p_scores, p_factors, p_state, p_out, p_kept_slots,
                    i_b, rows, until, every, s_slot, s_qt, s_kt, s_vt, HV, K, V, BK, BV, FACTORS, CHANNELS,
                    False, False, False, STAGES,
                )  # fmt: skip
                p_map = p_maps + i_seg * (HV * MAP) + o_m * BK + o_k
                for i in gl.static_range(3):
                    gl.store(p_map + i * BK * BK, _part(b_s, i))
            return
    if PASS == 2:
        b_s = gl.load(p_ends + o_v * BK + o_k)
        p_ends += i_b * BV * BK
        b_s = _compose(
            b_s, p_ends, p_maps, p_ends + (i_seg - 1) * (HV * 2 * HALF) + HALF, i_seg, HV * 2 * HALF,
            HV * MAP, BK, BV,
        )  # fmt: skip
    else:
        m_read = (o_v < gl.where(has & (read >= 0), V, 0)) & (o_k < K)
        b_s = gl.load(p_state + read * s_slot + o_v * K + o_k, mask=m_read, other=0.0).to(gl.float32)
    b_s = _walk(
        b_s, p_q, p_k, p_from, p_v, p_inverse, p_scores, p_factors, p_state, p_out, p_kept_slots,
        i_b, rows, until, every, s_slot, s_qt, s_kt, s_vt, HV, K, V, BK, BV, FACTORS, CHANNELS,
        True, True, KEEP, STAGES,
    )  # fmt: skip
    if is_last:
        p_to = p_state + write * s_slot + o_v * K + o_k
        gl.store(p_to, b_s.to(p_state.dtype.element_ty), mask=m_state)
    elif PASS == 1:
        gl.store(p_ends + o_v * BK + o_k, b_s)


launch_scan = Launcher(_scan)

__all__ = ["launch_scan", "load", "load_chunk", "start_chunk"]
