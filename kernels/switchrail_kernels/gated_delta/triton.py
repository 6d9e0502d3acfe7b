"""The gated delta rule in Triton: chunked prefill in two or three launches, recurrent decode in one.

Let G be the running sum of g inside a chunk of 32 tokens, A[i, j] = beta_i exp(G_i - G_j) k_i . k_j for i > j
and P[i, j] = scale exp(G_i - G_j) q_i . k_j for i >= j. This is the WY form of Yang et al. (arXiv 2406.06484)
with the gates of arXiv 2412.06464. `_prepare` computes T = (I + A)^-1 diag(beta), P and the row factors
exp(G) and exp(G_last - G) for all chunks at once. `switchrail_kernels.delta` scans the chunks and contains
the decode step. If q and k are normalised, the factors 1 / norm are folded into T, P and the row factors.
"""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from switchrail.ops.delta_call import DeltaCall
from switchrail.ops.gated_delta.contract import CONTRACT, GatedDeltaBackend

from switchrail_kernels.delta.backend import TritonDelta
from switchrail_kernels.delta.call import gate_constants, gate_numbers, gate_tensors, outer_strides
from switchrail_kernels.delta.gates import head_log2_decay, write_weight
from switchrail_kernels.delta.scan import Prepared
from switchrail_kernels.delta.solve import CHUNK, halves, store_chunks, store_inverses
from switchrail_kernels.launch import TABLES, Launcher, launch_options, padded
from switchrail_kernels.replay import scratch
from switchrail_kernels.segments import Chunks


@triton.jit
def _load_rows(p, o_rows, o_k, stride, rows, K: tl.constexpr, BK: tl.constexpr):
    """Load rows `o_rows` of a block, BK columns each. Rows from `rows` on are zeros."""
    m = o_rows < rows
    if K != BK:
        m = m & (o_k < K)
    return tl.load(p + o_rows * stride + o_k, mask=m, other=0.0)


@triton.jit(do_not_specialize_on_alignment=TABLES)
def _prepare(
    p_q, p_k, p_g, p_beta, p_rate, p_bias, p_blocks, p_inverse, p_scores, p_factors,
    scale, lower, beta_scale,
    s_qt, s_qh, s_kt, s_kh, s_gt, s_gh, s_bt, s_bh,
    H: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, L2NORM: tl.constexpr,
    FULL: tl.constexpr, BLOCK: tl.constexpr, GATE: tl.constexpr, BIAS: tl.constexpr, RAW_BETA: tl.constexpr,
):  # fmt: skip
    # Heads are the innermost axis of the grid, so that concurrent programs read whole rows.
    i_block = (tl.program_id(0) // H).to(tl.int64)
    i_h = tl.program_id(0) % H
    row = tl.load(p_blocks + 4 * i_block + 2).to(tl.int64)
    rows = tl.load(p_blocks + 4 * i_block + 3)
    p_q += row * s_qt + i_h * s_qh
    p_k += row * s_kt + i_h * s_kh
    p_g += row * s_gt
    p_beta += row * s_bt
    HV: tl.constexpr = H * GROUP
    CHUNKS: tl.constexpr = BLOCK // CHUNK

    # For each chunk, the two diagonal blocks of 16 and the block below them.
    o_16 = tl.arange(0, 16)
    o_k = tl.arange(0, BK)[None, None, :]
    o_r = (tl.arange(0, 2 * CHUNKS)[:, None] * 16 + o_16[None, :])[:, :, None]
    b_k = _load_rows(p_k, o_r, o_k, s_kt, rows, K, BK)
    b_q = _load_rows(p_q, o_r, o_k, s_qt, rows, K, BK)
    b_kk16 = tl.dot(b_k, tl.permute(b_k, (0, 2, 1)), input_precision="ieee")
    b_qk16 = tl.dot(b_q, tl.permute(b_k, (0, 2, 1)), input_precision="ieee")
    if L2NORM:  # the sums of squares are on the diagonals
        m_diagonal = (o_16[:, None] == o_16[None, :])[None]
        b_qq16 = tl.dot(b_q, tl.permute(b_q, (0, 2, 1)), input_precision="ieee")
        b_nk = tl.sum(tl.where(m_diagonal, b_kk16, 0.0), 2)
        b_nq = tl.sum(tl.where(m_diagonal, b_qq16, 0.0), 2)
        b_nk = tl.reshape(tl.rsqrt(b_nk + 1e-6), (BLOCK,))
        b_nq = tl.reshape(tl.rsqrt(b_nq + 1e-6) * scale, (BLOCK,))
    else:
        b_nk = tl.full((BLOCK,), 1.0, tl.float32)
        b_nq = tl.full((BLOCK,), 1.0, tl.float32) * scale
    o_r = (tl.arange(0, CHUNKS)[:, None] * CHUNK + o_16[None, :])[:, :, None]
    b_left = tl.permute(_load_rows(p_k, o_r, o_k, s_kt, rows, K, BK), (0, 2, 1))
    b_kk32 = tl.dot(_load_rows(p_k, o_r + 16, o_k, s_kt, rows, K, BK), b_left, input_precision="ieee")
    b_qk32 = tl.dot(_load_rows(p_q, o_r + 16, o_k, s_qt, rows, K, BK), b_left, input_precision="ieee")

    o_t = tl.arange(0, BLOCK)
    o_factor = o_t // CHUNK * (HV * 4 * CHUNK) + o_t % CHUNK
    for i_r in range(GROUP):
        i_hv = i_h * GROUP + i_r
        i_first = CHUNKS * i_block * HV + i_hv
        b_g = tl.load(p_g + o_t * s_gt + i_hv * s_gh, mask=o_t < rows, other=0.0)
        b_beta = tl.load(p_beta + o_t * s_bt + i_hv * s_bh, mask=o_t < rows, other=0.0)
        b_g = head_log2_decay(b_g, p_rate, p_bias, i_hv, lower, GATE, BIAS)
        b_beta = write_weight(b_beta, beta_scale, RAW_BETA)
        if GATE != 0:
            b_g = tl.where(o_t < rows, b_g, 0.0)
        if RAW_BETA:
            b_beta = tl.where(o_t < rows, b_beta, 0.0)
        # The sums of the coarse parts (multiples of 2^-10) are exact, so that their differences keep small
        # digits after a huge gate. The remainders sum to less than 1/32.
        b_coarse = tl.reshape(tl.floor(b_g * 1024.0) * (1.0 / 1024.0), (CHUNKS, CHUNK))
        b_rest = tl.reshape(b_g, (CHUNKS, CHUNK)) - b_coarse
        b_hi2 = tl.cumsum(b_coarse, 1)
        b_lo2 = tl.cumsum(b_rest, 1)
        b_hi_last = tl.sum(b_coarse, 1)
        b_lo_last = tl.sum(b_rest, 1)
        b_end = tl.exp2((b_hi_last[:, None] - b_hi2) + (b_lo_last[:, None] - b_lo2))
        b_hi = tl.reshape(b_hi2, (BLOCK,))
        b_lo = tl.reshape(b_lo2, (BLOCK,))
        b_up = tl.exp2(b_lo)
        b_from = b_nk * tl.exp2(-b_lo)
        b_to_p = b_nq * b_up
        b_to_a = b_nk * b_up * b_beta

        p_factor = p_factors + i_first * (4 * CHUNK)
        b_start = tl.exp2(b_hi) * b_up
        tl.store(p_factor + o_factor, b_nk * b_start)
        tl.store(p_factor + CHUNK + o_factor, b_nq * b_start)
        tl.store(p_factor + 2 * CHUNK + o_factor, b_nk * tl.reshape(b_end, (BLOCK,)))
        o_last = tl.arange(0, CHUNKS) * (HV * 4 * CHUNK) + 3 * CHUNK
        tl.store(p_factor + o_last, tl.exp2(b_hi_last + b_lo_last))

        b_h = tl.reshape(b_hi, (2 * CHUNKS, 16))
        b_f = tl.reshape(b_from, (2 * CHUNKS, 16))
        b_decay = tl.exp2(tl.minimum(b_h[:, :, None] - b_h[:, None, :], 0.0)) * b_f[:, None, :]
        b_p16 = b_qk16 * b_decay * tl.reshape(b_to_p, (2 * CHUNKS, 16))[:, :, None]
        b_d16 = b_kk16 * b_decay * tl.reshape(b_to_a, (2 * CHUNKS, 16))[:, :, None]
        b_p16 = tl.where((o_16[:, None] >= o_16[None, :])[None], b_p16, 0.0)
        b_d16 = tl.where((o_16[:, None] > o_16[None, :])[None], b_d16, 0.0)

        b_h0, b_h1 = halves(b_hi)
        b_f0, _ = halves(b_from)
        _, b_p1 = halves(b_to_p)
        _, b_a1 = halves(b_to_a)
        b_decay = tl.exp2(b_h1[:, :, None] - b_h0[:, None, :]) * b_f0[:, None, :]
        b_p32 = b_qk32 * b_decay * b_p1[:, :, None]
        b_r32 = b_kk32 * b_decay * b_a1[:, :, None]

        store_chunks(p_scores + i_first * (CHUNK * CHUNK), b_p16, b_p32, HV)
        store_inverses(p_inverse + i_first * (CHUNK * CHUNK), b_d16, b_r32, b_beta, HV, FULL)


_launch_prepare = Launcher(_prepare)

_BLOCK = 32
"""Tokens prepared per program: one chunk, which a single warp can prepare without waiting for others."""


class TritonGatedDelta(TritonDelta, GatedDeltaBackend):
    """The gated delta rule for compute capability 8.0 and later, for any head sizes, groups and strides."""

    contract = CONTRACT
    channels = False
    per_block = _BLOCK // CHUNK.value

    @staticmethod
    def prepare(call: DeltaCall, plan: Chunks) -> Prepared:
        """Inverses, scores and row factors, in one launch."""
        layer, q, k, v, g, beta, _ = call
        count = len(plan.blocks)
        _, heads, key_size = q.shape
        value_heads = v.shape[1]
        full = q.dtype == torch.float32
        chunks = count * _BLOCK // CHUNK.value * value_heads
        inverse, scores = (scratch((chunks, CHUNK.value, CHUNK.value), q.dtype, q.device) for _ in range(2))
        factors = scratch((chunks, 4 * CHUNK.value), torch.float32, q.device)
        sizes = (heads, value_heads // heads, key_size, padded(key_size, 16))
        _launch_prepare(
            (count * heads, 1, 1),
            (q, k, *gate_tensors(call), plan.blocks, inverse, scores, factors),
            (layer.scale, *gate_numbers(layer), *outer_strides(q, k, g, beta)),
            (*sizes, layer.qk_l2norm, full, _BLOCK, *gate_constants(layer)),
            num_warps=8 if full else 1,
            **launch_options(q.dtype),
        )
        return Prepared(q, k, k, inverse, scores, factors)
