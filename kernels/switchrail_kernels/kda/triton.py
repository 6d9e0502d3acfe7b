"""Kimi delta attention in Triton: chunked prefill in two or three launches, recurrent decode in one.

This is the delta rule of arXiv 2510.26692, with a decay per channel. Let G be the running sum of g inside a
chunk of 32 tokens, and A[i, j] = beta_i sum over channels of k_i exp(G_i - G_j) k_j for i > j. Without beta,
A is the matrix product of k exp(G - R) and k exp(R - G), for any R. With R the sum up to the middle of the
chunk, no exponent is large unless decays are near 0. If an exponent is large, A is computed by levels: for
each pair of neighbouring blocks of 16, 8, 4, 2 and 1 tokens, rows of the second block are multiplied by rows
of the first, with R the sum up to the end of the first block. Then no exponent is positive. `_prepare`
computes the causal scores P in the same way, and writes q and k with the decays that the scan of
`switchrail_kernels.delta` needs.
"""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from switchrail.ops.delta_call import DeltaCall
from switchrail.ops.kda.contract import CONTRACT, KdaBackend

from switchrail_kernels.delta.backend import TritonDelta
from switchrail_kernels.delta.call import gate_constants, gate_numbers, gate_tensors, outer_strides
from switchrail_kernels.delta.gates import log2_decay, write_weight
from switchrail_kernels.delta.scan import Prepared
from switchrail_kernels.delta.solve import CHUNK, store_inverses
from switchrail_kernels.device import multiprocessors
from switchrail_kernels.launch import TABLES, Launcher, launch_options, padded
from switchrail_kernels.replay import scratch
from switchrail_kernels.segments import Chunks


@triton.jit
def _decay(p_from, p_to, FULL: tl.constexpr, PLANE: tl.constexpr):
    """The decay between two rows of a chunk, in either order.

    It follows from the rows' running sums of log decays to base 2. If FULL, each sum has two parts.
    """
    b_x = tl.load(p_to) - tl.load(p_from)
    if FULL:
        b_x += tl.load(p_to + PLANE) - tl.load(p_from + PLANE)
    return tl.exp2(-tl.abs(b_x))


@triton.jit
def _load_gates(
    p_g, p_bias,
    b_rate, lower, o_r, o_k, rows,
    s_gt,
    K: tl.constexpr, GATE: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """log2 of the decays of rows `o_r` and channels `o_k`; 0 for rows from `rows` on."""
    m_g = (o_r < rows) & (o_k < K)
    b_g = tl.load(p_g + o_r * s_gt + o_k, mask=m_g, other=0.0)
    b_bias = 0.0
    if BIAS:
        b_bias = tl.load(p_bias + o_k, mask=o_k < K, other=0.0).to(tl.float32)
    b_g = log2_decay(b_g, b_rate, b_bias, lower, GATE)
    if GATE != 0:
        b_g = tl.where(m_g, b_g, 0.0)
    return b_g


@triton.jit
def _by_levels(
    p_q, p_k, p_g, p_bias, p_sums, p_read, p_write, p_origin,
    b_nq, b_nk, b_rate, lower, row, rows, i_hv,
    s_qt, s_kt, s_gt,
    HV: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, PART: tl.constexpr, FULL: tl.constexpr,
    BLOCK: tl.constexpr, GATE: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """A (without beta) and P of a block, and the scan's inputs, for gates of any size."""
    o_t = tl.arange(0, BLOCK)
    o_r = o_t[:, None]
    dtype = p_q.dtype.element_ty
    PLANE: tl.constexpr = BLOCK * BK
    EXACT: tl.constexpr = "ieee" if FULL else "tf32"
    for i_k in tl.range(0, BK, PART, num_stages=1):
        o_k = i_k + tl.arange(0, PART)[None, None, :]
        o_c = (tl.arange(0, BLOCK // CHUNK)[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :])[:, :, None]
        b_g = _load_gates(p_g, p_bias, b_rate, lower, o_c, o_k, rows, s_gt, K, GATE, BIAS)
        if FULL:  # sums of multiples of 2^-10 are exact
            b_coarse = tl.floor(b_g * 1024.0) * (1.0 / 1024.0)
            tl.store(p_sums + o_c * BK + o_k, tl.cumsum(b_coarse, 1))
            tl.store(p_sums + PLANE + o_c * BK + o_k, tl.cumsum(b_g - b_coarse, 1))
        else:
            tl.store(p_sums + o_c * BK + o_k, tl.cumsum(b_g, 1))
    tl.debug_barrier()

    b_a = tl.zeros((BLOCK, BLOCK), tl.float32)
    b_p = tl.zeros((BLOCK, BLOCK), tl.float32)
    for i_k in tl.range(0, BK, PART, num_stages=1):
        o_k = i_k + tl.arange(0, PART)[None, :]
        m_r = (o_r < rows) & (o_k < K)
        p_at = p_sums + o_r * BK + o_k
        b_k = tl.load(p_k + o_r * s_kt + o_k, mask=m_r, other=0.0) * b_nk[:, None]
        b_q = tl.load(p_q + o_r * s_qt + o_k, mask=m_r, other=0.0) * b_nq[:, None]
        o_out = ((row + o_r) * HV + i_hv) * K + o_k
        b_x = tl.load(p_at)
        if FULL:
            b_x += tl.load(p_at + PLANE)
        b_x = tl.exp2(b_x)
        tl.store(p_read + o_out, (b_q * b_x).to(dtype), mask=m_r)
        tl.store(p_origin + o_out, (b_k * b_x).to(dtype), mask=m_r)
        b_x = _decay(p_sums + (o_r // CHUNK * CHUNK + (CHUNK - 1)) * BK + o_k, p_at, FULL, PLANE)
        tl.store(p_write + o_out, (b_k * b_x).to(dtype), mask=m_r)

        # The diagonal is computed in float32: with decays near 0 only the diagonal remains, so the error of
        # TF32 would be too large.
        b_p += tl.where(o_r == o_t[None, :], tl.sum(b_q * b_k, 1)[:, None], 0.0)
        for i_level in tl.range(0, 5, num_stages=1):
            size = 1 << i_level
            o_ref = o_r // (2 * size) * (2 * size) + (size - 1)
            b_x = _decay(p_sums + o_ref * BK + o_k, p_at, FULL, PLANE)
            b_kx = b_k * b_x
            b_al = tl.dot(b_kx, tl.trans(b_kx), input_precision=EXACT)
            b_pl = tl.dot(b_q * b_x, tl.trans(b_kx), input_precision=EXACT)
            m_level = (o_r // (2 * size) == o_t[None, :] // (2 * size)) & (o_r // size > o_t[None, :] // size)
            b_a += tl.where(m_level, b_al, 0.0)
            b_p += tl.where(m_level, b_pl, 0.0)
    return b_a, b_p


@triton.jit(do_not_specialize=["total"], do_not_specialize_on_alignment=TABLES)
def _prepare(
    p_q, p_k, p_g, p_beta, p_rate, p_bias, p_blocks, p_inverse, p_scores, p_factors, p_read, p_write,
    p_origin, p_sums,
    scale, lower, beta_scale, total,
    s_qt, s_qh, s_kt, s_kh, s_gt, s_gh, s_bt, s_bh,
    HV: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, L2NORM: tl.constexpr,
    FULL: tl.constexpr, BLOCK: tl.constexpr, GATE: tl.constexpr, BIAS: tl.constexpr, RAW_BETA: tl.constexpr,
):  # fmt: skip
    o_t = tl.arange(0, BLOCK)
    o_r = o_t[:, None]
    CHUNKS: tl.constexpr = BLOCK // CHUNK
    o_2 = tl.arange(0, CHUNKS)
    o_16 = tl.arange(0, 16)
    o_chunk = tl.arange(0, CHUNK)
    dtype = p_q.dtype.element_ty
    PLANE: tl.constexpr = BLOCK * BK
    PART: tl.constexpr = min(BK, 64)
    LIMIT: tl.constexpr = 60.0
    EXACT: tl.constexpr = "ieee" if FULL else "tf32"
    # There are few programs, each with many blocks, so that their temporary data stays in the L2 cache.
    p_sums += tl.program_id(0).to(tl.int64) * (2 * PLANE + BLOCK * BLOCK)
    p_a = p_sums + 2 * PLANE
    for i_turn in tl.range(0, tl.cdiv(total - tl.program_id(0), tl.num_programs(0)), num_stages=1):
        i_p = tl.program_id(0) + i_turn * tl.num_programs(0)
        i_block = (i_p // HV).to(tl.int64)
        i_hv = i_p % HV
        i_h = i_hv // GROUP
        row = tl.load(p_blocks + 4 * i_block + 2).to(tl.int64)
        rows = tl.load(p_blocks + 4 * i_block + 3)
        p_qb = p_q + row * s_qt + i_h * s_qh
        p_kb = p_k + row * s_kt + i_h * s_kh
        p_gb = p_g + row * s_gt + i_hv * s_gh
        p_biasb = p_bias + i_hv * K
        b_rate = 0.0
        if GATE != 0:
            b_rate = tl.exp(tl.load(p_rate + i_hv).to(tl.float32))
        i_first = CHUNKS * i_block * HV + i_hv

        b_nk = tl.full((BLOCK,), 1.0, tl.float32)
        b_nq = tl.full((BLOCK,), 1.0, tl.float32)
        if L2NORM:
            b_nk = tl.zeros((BLOCK,), tl.float32)
            b_nq = tl.zeros((BLOCK,), tl.float32)
            for i_k in tl.range(0, BK, PART, num_stages=1):
                o_k = i_k + tl.arange(0, PART)[None, :]
                m_r = (o_r < rows) & (o_k < K)
                b_k = tl.load(p_kb + o_r * s_kt + o_k, mask=m_r, other=0.0).to(tl.float32)
                b_q = tl.load(p_qb + o_r * s_qt + o_k, mask=m_r, other=0.0).to(tl.float32)
                b_nk += tl.sum(b_k * b_k, 1)
                b_nq += tl.sum(b_q * b_q, 1)
            b_nk = tl.rsqrt(b_nk + 1e-6)
            b_nq = tl.rsqrt(b_nq + 1e-6)
        b_nq *= scale

        # With the sums up to the middle of the chunk as R, one product is enough unless an exponent is too
        # large.
        b_a = tl.zeros((BLOCK, BLOCK), tl.float32)
        b_p = tl.zeros((BLOCK, BLOCK), tl.float32)
        b_far = tl.zeros((CHUNKS,), tl.float32)
        for i_k in tl.range(0, BK, PART, num_stages=1):
            o_k = i_k + tl.arange(0, PART)[None, None, :]
            o_c = (o_2[:, None] * CHUNK + o_chunk[None, :])[:, :, None]
            b_g = _load_gates(p_gb, p_biasb, b_rate, lower, o_c, o_k, rows, s_gt, K, GATE, BIAS)
            b_last = tl.sum(b_g, 1)
            b_middle = tl.sum(tl.where((o_chunk < 16)[None, :, None], b_g, 0.0), 1)
            b_x = tl.cumsum(b_g, 1) - b_middle[:, None, :]
            b_far = tl.maximum(b_far, tl.max(tl.maximum(-b_middle, b_middle - b_last), 1))
            b_before = tl.reshape(tl.exp2(b_x), (BLOCK, PART))
            b_after = tl.reshape(tl.exp2(-b_x), (BLOCK, PART))
            b_start = tl.broadcast_to(tl.exp2(b_middle)[:, None, :], (CHUNKS, CHUNK, PART))
            b_end = tl.broadcast_to(tl.exp2(b_last - b_middle)[:, None, :], (CHUNKS, CHUNK, PART))
            o_k = i_k + tl.arange(0, PART)[None, :]
            tl.store(p_factors + (i_first + o_2[:, None] * HV) * BK + o_k, tl.exp2(b_last))

            m_r = (o_r < rows) & (o_k < K)
            b_k = tl.load(p_kb + o_r * s_kt + o_k, mask=m_r, other=0.0) * b_nk[:, None]
            b_q = tl.load(p_qb + o_r * s_qt + o_k, mask=m_r, other=0.0) * b_nq[:, None]
            b_left = b_k * b_after
            b_k *= b_before
            b_q *= b_before
            b_a = tl.dot(b_k, tl.trans(b_left), acc=b_a, input_precision=EXACT)
            b_p = tl.dot(b_q, tl.trans(b_left), acc=b_p, input_precision=EXACT)

            # The scan's inputs: with decays from the chunk's start, and to its end.
            o_out = ((row + o_r) * HV + i_hv) * K + o_k
            b_start = tl.reshape(b_start, (BLOCK, PART))
            tl.store(p_read + o_out, (b_q * b_start).to(dtype), mask=m_r)
            tl.store(p_origin + o_out, (b_k * b_start).to(dtype), mask=m_r)
            tl.store(p_write + o_out, (b_left * tl.reshape(b_end, (BLOCK, PART))).to(dtype), mask=m_r)

        if tl.max(b_far, 0) > LIMIT:
            b_a, b_p = _by_levels(
                p_qb, p_kb, p_gb, p_biasb, p_sums, p_read, p_write, p_origin, b_nq, b_nk, b_rate, lower,
                row, rows, i_hv, s_qt, s_kt, s_gt, HV, K, BK, PART, FULL, BLOCK, GATE, BIAS,
            )  # fmt: skip

        b_beta = tl.load(p_beta + (row + o_t) * s_bt + i_hv * s_bh, mask=o_t < rows, other=0.0)
        b_beta = write_weight(b_beta, beta_scale, RAW_BETA)
        if RAW_BETA:
            b_beta = tl.where(o_t < rows, b_beta, 0.0)
        b_p = tl.where(o_t[:, None] >= o_t[None, :], b_p, 0.0)
        b_a = tl.where(o_t[:, None] > o_t[None, :], b_a * b_beta[:, None], 0.0)
        o_at = (
            o_t[:, None] // CHUNK * (HV * CHUNK * CHUNK) + o_t[:, None] % CHUNK * CHUNK + o_t[None, :] % CHUNK
        )
        m_chunk = o_t[:, None] // CHUNK == o_t[None, :] // CHUNK
        tl.store(p_scores + i_first * (CHUNK * CHUNK) + o_at, b_p.to(dtype), mask=m_chunk)
        tl.store(p_a + o_t[:, None] * BLOCK + o_t[None, :], b_a)

        tl.debug_barrier()
        o_at = (o_16[:, None] * BLOCK + o_16[None, :])[None]
        b_a16 = tl.load(p_a + o_at + tl.arange(0, 2 * CHUNKS)[:, None, None] * (16 * BLOCK + 16))
        b_a32 = tl.load(p_a + o_at + o_2[:, None, None] * (CHUNK * BLOCK + CHUNK) + 16 * BLOCK)
        store_inverses(p_inverse + i_first * (CHUNK * CHUNK), b_a16, b_a32, b_beta, HV, FULL)
        tl.debug_barrier()  # the stored data is overwritten below


_launch_prepare = Launcher(_prepare)

_BLOCK = 64
"""Tokens that one program prepares at a time."""


class TritonKda(TritonDelta, KdaBackend):
    """Kimi delta attention for compute capability 8.0 and later, for any head sizes, groups and strides."""

    contract = CONTRACT
    channels = True
    per_block = _BLOCK // CHUNK.value

    @staticmethod
    def prepare(call: DeltaCall, plan: Chunks) -> Prepared:
        """Inverses and scores, and the scan's q and k, in one launch."""
        layer, q, k, v, g, beta, _ = call
        count = len(plan.blocks)
        rows, heads, key_size = q.shape
        value_heads = v.shape[1]
        block_k = padded(key_size, 16)
        full = q.dtype == torch.float32
        chunks = count * _BLOCK // CHUNK.value * value_heads
        programs = min(count * value_heads, _PROGRAMS * multiprocessors(q.device))
        inverse, scores = (scratch((chunks, CHUNK.value, CHUNK.value), q.dtype, q.device) for _ in range(2))
        keys = (rows, value_heads, key_size)
        read, write, origin = (scratch(keys, q.dtype, q.device) for _ in range(3))
        factors = scratch((chunks, block_k), torch.float32, q.device)
        sums = scratch((programs, _BLOCK, 2 * block_k + _BLOCK), torch.float32, q.device)
        sizes = (value_heads, value_heads // heads, key_size, block_k)
        _launch_prepare(
            (programs, 1, 1),
            (q, k, *gate_tensors(call), plan.blocks, inverse, scores, factors, read, write, origin, sums),
            (layer.scale, *gate_numbers(layer), count * value_heads, *outer_strides(q, k, g, beta)),
            (*sizes, layer.qk_l2norm, full, _BLOCK, *gate_constants(layer)),
            num_warps=8 if full else 4,
            **launch_options(q.dtype),
        )
        return Prepared(read, write, origin, inverse, scores, factors)


_PROGRAMS = 2
"""Concurrent programs of `_prepare` per multiprocessor."""
