"""Attention to latents on Hopper: like `absorbed`, for 16-bit latents of 512 and rotary parts of 64.

Eight warps share 64 rows. For the logits, each of the two warpgroups takes half of a block's 64 keys; for the
sum, half of the 512 columns. So the accumulators fit in registers. The softmax weights pass through shared
memory, which the queries and two blocks of keys fill almost completely. The next block is loaded while the
tensor cores compute with the current one.
"""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN202, SIM102
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from switchrail_kernels.constants import LN2
from switchrail_kernels.launch import TABLES, Launcher
from switchrail_kernels.mla.absorbed import find_piece
from switchrail_kernels.softmax import find_rows

# The second name of each function is that of Triton 3.6; later versions renamed them.
_load = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
_barrier = getattr(gl, "barrier", None) or gl.thread_barrier


@gluon.jit
def _token_offsets(p_pages, o_n, stop, PAGE: gl.constexpr, L: gl.constexpr):
    """The offsets of tokens in the cache. Positions past the end get the offset of the last token."""
    o_seen = gl.minimum(o_n, stop - 1)
    page = gl.load(p_pages + o_seen // PAGE).to(gl.int64)
    return (page * PAGE + o_seen % PAGE) * L


@gluon.jit(do_not_specialize=["s_pages", "H", "base", "most"], do_not_specialize_on_alignment=TABLES)
def _attend(
    p_plain, p_rotated, p_cache, p_out, p_lse, p_parts, p_weights, p_items, p_cu_seqlens, p_parents, p_pages,
    p_kv_lens,
    scale,
    s_pt, s_ph, s_rt, s_rh, s_pages,
    H, base, most,
    BG: gl.constexpr, BT: gl.constexpr, R: gl.constexpr, BR: gl.constexpr, BK: gl.constexpr,
    BV: gl.constexpr, E: gl.constexpr, BE: gl.constexpr, BN: gl.constexpr, PAGE: gl.constexpr,
    DECODE: gl.constexpr, TREES: gl.constexpr, LSE: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Compute the attention of one tile of rows to one piece of its keys.

    The parameters are as in `absorbed`, but the kernel does not use all of them, and does not support trees.
    """
    BM: gl.constexpr = BT * BG
    L: gl.constexpr = R + E
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [8, 1], [1, 0])
    narrow: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [8, 1], [1, 0])
    logits: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, BN // 2, 16])
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, R // 2, 16])
    shared: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    dtype: gl.constexpr = p_cache.dtype.element_ty

    i_tile = gl.program_id(0) // gl.cdiv(H, BG)
    i_h = gl.program_id(0) % gl.cdiv(H, BG)
    p_items, i_n, within, row, rows, at, kv_len, past = find_rows(
        p_items, i_tile, p_cu_seqlens, p_kv_lens, DECODE
    )
    stop = gl.where(kv_len > 0, past + within + rows, 0)
    i_p, pieces, length = find_piece(p_items, stop, base, most, BN, DECODE)
    if DECODE:
        if i_p >= pieces:
            return
    start = i_p * length
    stop = gl.minimum(start + length, stop)
    blocks = gl.cdiv(gl.maximum(stop - start, 0), BN)
    p_pages += i_n.to(gl.int64) * s_pages

    o_wm = gl.arange(0, BM, layout=gl.SliceLayout(1, wide))
    o_wn = gl.arange(0, BN, layout=gl.SliceLayout(1, wide))
    o_wc = gl.arange(0, R, layout=gl.SliceLayout(0, wide))[None, :]
    o_nm = gl.arange(0, BM, layout=gl.SliceLayout(1, narrow))
    o_nn = gl.arange(0, BN, layout=gl.SliceLayout(1, narrow))
    o_nc = gl.arange(0, E, layout=gl.SliceLayout(0, narrow))[None, :]
    s_c = gl.allocate_shared_memory(dtype, [2, BN, R], shared)
    s_r = gl.allocate_shared_memory(dtype, [2, BN, E], shared)
    s_p = gl.allocate_shared_memory(dtype, [BM, BN], shared)
    if blocks > 0:
        o_wide = _token_offsets(p_pages, start + o_wn, stop, PAGE, L)
        o_narrow = _token_offsets(p_pages, start + o_nn, stop, PAGE, L)
        _load(s_c.index(0), p_cache + o_wide[:, None] + o_wc)
        _load(s_r.index(0), p_cache + o_narrow[:, None] + (R + o_nc))
    async_copy.commit_group()

    o_h = i_h * BG + o_wm % BG
    o_plain = (at + o_wm // BG) * s_pt + o_h.to(gl.int64) * s_ph
    m_row = ((o_wm // BG < rows) & (o_h < H))[:, None]
    s_plain = gl.allocate_shared_memory(
        dtype, [BM, R], shared, gl.load(p_plain + o_plain[:, None] + o_wc, mask=m_row, other=0.0)
    )
    o_h = i_h * BG + o_nm % BG
    o_rotated = (row + o_nm // BG) * s_rt + o_h.to(gl.int64) * s_rh
    m_row = ((o_nm // BG < rows) & (o_h < H))[:, None]
    s_rotated = gl.allocate_shared_memory(
        dtype, [BM, E], shared, gl.load(p_rotated + o_rotated[:, None] + o_nc, mask=m_row, other=0.0)
    )

    o_m = gl.arange(0, BM, layout=gl.SliceLayout(1, logits))
    o_row = within + gl.minimum(o_m // BG, rows - 1)
    o_key = gl.arange(0, BN, layout=gl.SliceLayout(0, logits))
    b_max = gl.full([BM], float("-inf"), gl.float32, gl.SliceLayout(1, logits))
    b_sums = gl.zeros([BM, BN], gl.float32, logits)
    b_zero = gl.zeros([BM, BN], gl.float32, logits)
    b_acc = gl.zeros([BM, R], gl.float32, sums)
    fence_async_shared()
    for i_b in range(blocks):
        now = i_b % 2
        async_copy.wait_group(0)  # the compiler makes all warps wait here
        fence_async_shared()
        b_s = warpgroup_mma(s_plain, s_c.index(now).permute([1, 0]), b_zero, use_acc=False, is_async=True)
        b_s = warpgroup_mma(s_rotated, s_r.index(now).permute([1, 0]), b_s, is_async=True)
        # Load the next block into the buffer of the previous block.
        i_start = start + i_b * BN
        o_wide = _token_offsets(p_pages, i_start + BN + o_wn, stop, PAGE, L)
        o_narrow = _token_offsets(p_pages, i_start + BN + o_nn, stop, PAGE, L)
        _load(
            s_c.index(1 - now),
            p_cache + o_wide[:, None] + o_wc,
            mask=(o_wn * 0 + i_start + BN < stop)[:, None],
        )
        _load(
            s_r.index(1 - now),
            p_cache + o_narrow[:, None] + (R + o_nc),
            mask=(o_nn * 0 + i_start + BN < stop)[:, None],
        )
        async_copy.commit_group()
        b_s = warpgroup_mma_wait(0, deps=(b_s,)) * scale
        o_seen = i_start - past + o_key
        b_s = gl.where(o_row[:, None] >= o_seen[None, :], b_s, float("-inf"))
        b_new = gl.maximum(b_max, gl.max(b_s, 1))
        b_ref = gl.where(b_new == float("-inf"), 0.0, b_new)  # for rows without a visible key so far
        b_p = gl.exp2(b_s - b_ref[:, None])
        b_scale = gl.exp2(b_max - b_ref)
        b_sums = b_sums * b_scale[:, None] + b_p
        b_max = b_new
        s_p.store(b_p.to(dtype))
        fence_async_shared()
        b_acc = b_acc * gl.convert_layout(b_scale, gl.SliceLayout(1, sums))[:, None]
        _barrier()
        b_acc = warpgroup_mma(s_p, s_c.index(now), b_acc, is_async=True)
        b_acc = warpgroup_mma_wait(0, deps=(b_acc,))

    async_copy.wait_group(0)
    b_sum = gl.sum(b_sums, 1)
    b_total = b_max + gl.log2(b_sum)
    b_inverse = 1.0 / gl.where(b_sum > 0, b_sum, 1.0)  # padding has no keys, so its results are zeros
    b_acc = b_acc * gl.convert_layout(b_inverse, gl.SliceLayout(1, sums))[:, None]
    o_a = gl.arange(0, BM, layout=gl.SliceLayout(1, sums))
    o_c = gl.arange(0, R, layout=gl.SliceLayout(0, sums))[None, :]
    o_ah = i_h * BG + o_a % BG
    o_mh = i_h * BG + o_m % BG
    m_a = ((o_a // BG < rows) & (o_ah < H))[:, None]
    m_m = (o_m // BG < rows) & (o_mh < H)
    if pieces > 1:
        slot = row * most + i_p
        if not DECODE:
            slot = gl.load(p_items + 6).to(gl.int64) + i_p * rows
        o_part = (slot + o_a // BG) * H + o_ah
        gl.store(p_parts + o_part[:, None] * R + o_c, b_acc, mask=m_a)
        gl.store(p_weights + (slot + o_m // BG) * H + o_mh, b_total, mask=m_m)
        return
    o_out = (at + o_a // BG) * H + o_ah
    gl.store(p_out + o_out[:, None] * R + o_c, b_acc.to(dtype), mask=m_a)
    if LSE:
        gl.store(p_lse + (row + o_m // BG) * H + o_mh, b_total * LN2, mask=m_m)


launch_attend = Launcher(_attend)
