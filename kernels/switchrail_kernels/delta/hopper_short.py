"""The scan of many short sequences on Hopper, in programs that scan several items each.

An item is a sequence, a value head, and `BV` rows of that head's state; a program scans one item after
another. A scan can only begin once the item's tables, state and first chunks are loaded. Waiting for them
would take as long as scanning a few chunks. So each program loads them for its next item while it still scans
the present one.
"""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma_wait

from switchrail_kernels.delta.hopper import load, load_chunk, start_chunk
from switchrail_kernels.delta.solve import CHUNK
from switchrail_kernels.launch import TABLES, Launcher


@gluon.jit
def _find(p_sequences, item, items, ITEMS: gl.constexpr):
    """The index of an item's sequence in the batch, and the index of that sequence's first chunk.

    An item past the last one gets the two indices of the first sequence in `p_sequences`.
    """
    i_z = gl.where(item < items, item // ITEMS, 0)
    return gl.load(p_sequences + 2 * i_z), gl.load(p_sequences + 2 * i_z + 1)


@gluon.jit
def _tables(p_cu_seqlens, p_read_slots, p_write_slots, p_has_initial_state, i_n):
    """A sequence's first row, last row + 1, slots to read and write, and whether it has an initial state."""
    row = gl.load(p_cu_seqlens + i_n)
    end = gl.load(p_cu_seqlens + i_n + 1)
    read = gl.load(p_read_slots + i_n)
    return row, end, read, gl.load(p_write_slots + i_n), gl.load(p_has_initial_state + i_n)


@gluon.jit
def _load_state(s_s, p_from, rows, BK: gl.constexpr, BV: gl.constexpr):
    """Start loading `rows` rows of a state; the other rows become zeros."""
    ls: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [gl.num_warps(), 1], [1, 0])
    o_v = gl.arange(0, BV, layout=gl.SliceLayout(1, ls))[:, None]
    o_k = gl.arange(0, BK, layout=gl.SliceLayout(0, ls))[None, :]
    load(s_s, p_from + o_v * BK + o_k, mask=o_v < rows)


@gluon.jit
def _load_item(
    into, at, source, item, i_c, row, rows,
    s_qt: gl.constexpr, s_qh: gl.constexpr, s_kt: gl.constexpr, s_kh: gl.constexpr, s_vt: gl.constexpr,
    s_vh: gl.constexpr, HV: gl.constexpr, GROUP: gl.constexpr, BLOCKS: gl.constexpr, BK: gl.constexpr,
    BV: gl.constexpr,
):  # fmt: skip
    """Start loading chunk `i_c` for an item, from `source` to index `at` of the buffers `into`.

    The chunk begins at row `row`. From there to the end of the sequence there are `rows` rows. If `rows` is 0
    or less, nothing is loaded. Returns `i_c`, `row` and `rows` for the next chunk.
    """
    s_b, s_v, s_t, s_p, s_f = into
    p_q, p_k, p_v, p_inverse, p_scores, p_factors = source
    i_hv = item // BLOCKS % HV
    i_f = i_c * HV + i_hv
    p_k += row * s_kt + i_hv // GROUP * s_kh
    load_chunk(
        s_b.index(at), s_b.index(at), s_v.index(at), s_t.index(at), s_p.index(at), s_f.index(at),
        p_q + row * s_qt + i_hv // GROUP * s_qh, p_k, p_k,
        p_v + row * s_vt + i_hv * s_vh + item % BLOCKS * BV,
        p_inverse + i_f * (CHUNK * CHUNK), p_scores + i_f * (CHUNK * CHUNK), p_factors + i_f * (4 * CHUNK),
        0, rows, s_qt, s_kt, s_vt, BK, BV, BK, BV, False, True, True,
    )  # fmt: skip
    return i_c + 1, row + CHUNK, rows - CHUNK


@gluon.jit(do_not_specialize=["items"], do_not_specialize_on_alignment=TABLES)
def _scan_short(
    p_q, p_k, p_v, p_inverse, p_scores, p_factors, p_state, p_out, p_sequences,
    p_cu_seqlens, p_read_slots, p_write_slots, p_has_initial_state,
    s_slot, items,
    s_qt: gl.constexpr, s_qh: gl.constexpr, s_kt: gl.constexpr, s_kh: gl.constexpr, s_vt: gl.constexpr,
    s_vh: gl.constexpr, HV: gl.constexpr, GROUP: gl.constexpr, V: gl.constexpr, BK: gl.constexpr,
    BV: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Scan `items` items. An item is a sequence, a value head, and `BV` rows of that head's float32 state.

    A program loads `STAGES - 1` chunks ahead of its scan, for the present item and the next one. So each
    sequence must have at least `STAGES - 1` chunks. With fewer chunks, the loads would run two items ahead.
    """
    WARPS: gl.constexpr = gl.num_warps()
    BLOCKS: gl.constexpr = V // BV
    ITEMS: gl.constexpr = HV * BLOCKS
    dtype: gl.constexpr = p_k.dtype.element_ty
    wide: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BK, 16])
    lv: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BV, BV // 8], [WARPS, 1], [1, 0])
    whole: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    square: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=64, element_bitwidth=16, rank=2)
    s_b = gl.allocate_shared_memory(dtype, [STAGES, 2 * CHUNK, BK], whole)
    s_v = gl.allocate_shared_memory(dtype, [STAGES, CHUNK, BV], whole)
    s_t = gl.allocate_shared_memory(dtype, [STAGES, CHUNK, CHUNK], square)
    s_p = gl.allocate_shared_memory(dtype, [STAGES, CHUNK, CHUNK], square)
    s_f = gl.allocate_shared_memory(gl.float32, [STAGES, 4 * CHUNK], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    s_s = gl.allocate_shared_memory(gl.float32, [BV, BK], gl.SwizzledSharedLayout(4, 1, 8, [1, 0]))
    into = s_b, s_v, s_t, s_p, s_f
    source = p_q, p_k, p_v, p_inverse, p_scores, p_factors
    o_r = gl.arange(0, CHUNK, layout=gl.SliceLayout(1, lv))[:, None]
    o_v = gl.arange(0, BV, layout=gl.SliceLayout(0, lv))[None, :]
    o_state = gl.arange(0, BV, layout=gl.SliceLayout(1, wide))[:, None] * BK
    o_state += gl.arange(0, BK, layout=gl.SliceLayout(0, wide))[None, :]

    # Tables are loaded long before they are used. While an item is scanned, the variables n_ hold the tables
    # of the next item, and the variables m_ hold the tables of the second item ahead. i_n and i_c are the
    # sequence and the first chunk of the third item ahead, whose tables are not loaded yet. The variables a_
    # describe the next chunk to load.
    every = gl.num_programs(0)
    a_item = gl.program_id(0)
    i_n, n_c = _find(p_sequences, a_item, items, ITEMS)
    n_row, n_end, n_read, n_write, n_has = _tables(
        p_cu_seqlens, p_read_slots, p_write_slots, p_has_initial_state, i_n
    )
    i_n, m_c = _find(p_sequences, a_item + every, items, ITEMS)
    m_row, m_end, m_read, m_write, m_has = _tables(
        p_cu_seqlens, p_read_slots, p_write_slots, p_has_initial_state, i_n
    )
    i_n, i_c = _find(p_sequences, a_item + 2 * every, items, ITEMS)
    a_row = n_row.to(gl.int64)
    a_rows = n_end - n_row
    a_c = n_c.to(gl.int64)
    p_from = p_state + n_read * s_slot + a_item % ITEMS * (BV * BK)
    _load_state(s_s, p_from, gl.where(n_has & (n_read >= 0), BV, 0), BK, BV)
    for i in gl.static_range(STAGES - 1):
        a_c, a_row, a_rows = _load_item(
            into, i, source, a_item, a_c, a_row, a_rows,
            s_qt, s_qh, s_kt, s_kh, s_vt, s_vh, HV, GROUP, BLOCKS, BK, BV,
        )  # fmt: skip
    now = 0
    free = STAGES - 1
    for item in range(gl.program_id(0), items, every):
        row = n_row.to(gl.int64)
        rows = n_end - n_row
        write = n_write
        n_row, n_end, n_read, n_write, n_has, n_c = m_row, m_end, m_read, m_write, m_has, m_c
        m_row, m_end, m_read, m_write, m_has = _tables(
            p_cu_seqlens, p_read_slots, p_write_slots, p_has_initial_state, i_n
        )
        m_c = i_c
        i_n, i_c = _find(p_sequences, item + 3 * every, items, ITEMS)
        p_to = p_out + row * (HV * V) + item % ITEMS * BV + o_r * (HV * V) + o_v
        stored = gl.where(write >= 0, rows, 0)
        if write < 0:  # padding: write zeros here; the scan below stores nothing
            b_zero = gl.zeros([CHUNK, BV], dtype, lv)
            for i_t in range(0, rows, CHUNK):
                gl.store(
                    p_to + i_t.to(gl.int64) * (HV * V),  # type: ignore[attr-defined]
                    b_zero,
                    mask=i_t + o_r < rows,
                )
        p_to -= CHUNK * HV * V
        async_copy.wait_group(STAGES - 2)
        b_s = s_s.load(wide)
        for i_t in range(0, rows, CHUNK):
            async_copy.wait_group(STAGES - 2)
            m_done = (i_t > 0) & (i_t - CHUNK + o_r < stored)
            b_s, b_p, b_o = start_chunk(  # stores the previous chunk's output, from s_v.index(free)
                b_s, s_b.index(now), s_b.index(now), s_v.index(now), s_t.index(now), s_p.index(now),
                s_f.index(now), s_v.index(free), p_to, m_done, BK, BV, False, True, True,
            )  # fmt: skip
            p_to += CHUNK * HV * V
            if (a_rows <= 0) & (a_item == item):
                a_item = item + every
                a_row = n_row.to(gl.int64)
                a_rows = gl.where(a_item < items, n_end - n_row, 0)
                a_c = n_c.to(gl.int64)
                p_from = p_state + n_read * s_slot + a_item % ITEMS * (BV * BK)
                is_read = n_has & (n_read >= 0) & (a_item < items)
                _load_state(s_s, p_from, gl.where(is_read, BV, 0), BK, BV)
            a_c, a_row, a_rows = _load_item(
                into, free, source, a_item, a_c, a_row, a_rows,
                s_qt, s_qh, s_kt, s_kh, s_vt, s_vh, HV, GROUP, BLOCKS, BK, BV,
            )  # fmt: skip
            b_s, b_p = warpgroup_mma_wait(0, deps=(b_s, b_p))
            s_v.index(now).permute([1, 0]).store((b_o + b_p).to(dtype))
            now = gl.where(now == STAGES - 1, 0, now + 1)
            free = gl.where(free == STAGES - 1, 0, free + 1)
        last = (rows - 1) // CHUNK * CHUNK
        gl.store(p_to, s_v.index(free).load(lv), mask=last + o_r < stored)
        p_end = p_state + write * s_slot + item % ITEMS * (BV * BK)
        gl.store(p_end + o_state, b_s, mask=o_state < gl.where(write >= 0, BV * BK, 0))
    async_copy.wait_group(0)


launch_scan_short = Launcher(_scan_short)

__all__ = ["launch_scan_short"]
