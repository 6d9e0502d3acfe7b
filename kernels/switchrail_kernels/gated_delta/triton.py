"""The gated delta rule in Triton: chunked prefill in two launches, recurrent decode in one.

With G the running sum of g inside a chunk of 64 tokens and S the state before it, the chunk's corrected
values are u = T (v - exp(G) k S^T), T = (I + A)^-1 diag(beta), A[i, j] = beta_i exp(G_i - G_j) k_i . k_j for
i > j, which is the WY form of Yang et al. (arXiv 2406.06484) with the gates of arXiv 2412.06464. T depends on
no state, so `_prepare` computes it for all chunks at once, with the causal scores
P[i, j] = scale exp(G_i - G_j) q_i . k_j. `_scan` then walks the chunks of a sequence with the state in
registers:

    u = T v - T (exp(G) k S^T)
    out = scale exp(G) q S^T + P u
    S <- exp(G_last) S + (exp(G_last - G) u)^T k.

It works on the transposes of u and out, so that every product that depends on the state has it, or a value
made from it, as its left operand, which tensor cores read from registers. The factors of the L2 norm are per
token and are folded into T, P and three vectors of row factors.
"""

# Triton reads the types of a kernel's arguments at the call.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from switchrail.ops.backend import GatedDeltaBackend
from switchrail.ops.batch import Phase, StateBatch

from switchrail_kernels.device import has_large_shared_memory
from switchrail_kernels.launch import Launcher, launch_options
from switchrail_kernels.tables import split_rows, to_device

CHUNK = tl.constexpr(64)


@triton.jit
def _solve_dot(a, b, FULL: tl.constexpr):
    """A product in the triangular solve: in float32, or of float16 operands, which keep 11 bits."""
    if FULL:
        return tl.dot(a, b, input_precision="ieee")
    return tl.dot(a.to(tl.float16), b.to(tl.float16))


@triton.jit
def _prepare(
    p_q,
    p_k,
    p_g,
    p_beta,
    p_chunks,
    p_inverse,
    p_scores,
    p_factors,
    scale,
    s_qt,
    s_qh,
    s_kt,
    s_kh,
    s_gt,
    s_gh,
    s_bt,
    s_bh,
    H: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    BK: tl.constexpr,
    L2NORM: tl.constexpr,
    FULL: tl.constexpr,
):
    # Heads innermost: programs that run together read whole rows.
    i_c = (tl.program_id(0) // H).to(tl.int64)
    i_h = tl.program_id(0) % H
    row = tl.load(p_chunks + 4 * i_c + 2).to(tl.int64)
    rows = tl.load(p_chunks + 4 * i_c + 3)
    p_q += row * s_qt + i_h * s_qh
    p_k += row * s_kt + i_h * s_kh
    p_g += row * s_gt
    p_beta += row * s_bt
    HV: tl.constexpr = H * GROUP

    o_t = tl.arange(0, CHUNK)
    o_k = tl.arange(0, BK)
    m_rows = (o_t < rows)[:, None] & (o_k < K)[None, :]
    b_k = tl.load(p_k + o_t[:, None] * s_kt + o_k[None, :], mask=m_rows, other=0.0)
    b_q = tl.load(p_q + o_t[:, None] * s_qt + o_k[None, :], mask=m_rows, other=0.0)
    if L2NORM:
        b_k32 = b_k.to(tl.float32)
        b_q32 = b_q.to(tl.float32)
        b_nk = tl.rsqrt(tl.sum(b_k32 * b_k32, 1) + 1e-6)
        b_nq = tl.rsqrt(tl.sum(b_q32 * b_q32, 1) + 1e-6) * scale
    else:
        b_nk = tl.full((CHUNK,), 1.0, tl.float32)
        b_nq = tl.full((CHUNK,), 1.0, tl.float32) * scale
    b_qk = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * b_nq[:, None]
    b_kk = tl.dot(b_k, tl.trans(b_k), input_precision="ieee") * b_nk[:, None]

    o_i = o_t[:, None]
    o_j = o_t[None, :]
    o_block = o_i * CHUNK + o_j
    o_16 = tl.arange(0, 16)
    m_diagonal = (tl.arange(0, 4)[:, None] == tl.arange(0, 4)[None, :])[:, None, :, None]
    for i_r in range(GROUP):
        i_hv = i_h * GROUP + i_r
        b_g = tl.load(p_g + o_t * s_gt + i_hv * s_gh, mask=o_t < rows, other=0.0)
        b_beta = tl.load(p_beta + o_t * s_bt + i_hv * s_bh, mask=o_t < rows, other=0.0).to(tl.float32)
        # In powers of 2, and 2^-192 is 0 in float32. The sums of the coarse parts, multiples of 2^-10, are
        # exact, so that a difference of sums keeps what is small after a huge gate; the rest sums to less
        # than 1/16.
        b_g = tl.maximum(b_g * 1.4426950408889634, -192.0)
        b_coarse = tl.floor(b_g * 1024.0) * (1.0 / 1024.0)
        b_hi = tl.cumsum(b_coarse, 0)
        b_lo = tl.cumsum(b_g - b_coarse, 0)
        b_hi_last = tl.sum(b_coarse, 0)
        b_lo_last = tl.sum(b_g - b_coarse, 0)

        b_decay = tl.exp2(tl.minimum(b_hi[:, None] - b_hi[None, :], 0.0) + b_lo[:, None])
        b_decay *= (b_nk * tl.exp2(-b_lo))[None, :]
        b_p = tl.where(o_i >= o_j, b_qk * b_decay, 0.0)
        p_block = (i_c * HV + i_hv) * (CHUNK * CHUNK)
        tl.store(p_scores + p_block + o_block, b_p.to(p_scores.dtype.element_ty))

        p_factor = p_factors + (i_c * HV + i_hv) * (4 * CHUNK)
        b_start = tl.exp2(b_hi + b_lo)
        tl.store(p_factor + o_t, b_nk * b_start)
        tl.store(p_factor + CHUNK + o_t, b_nq * b_start)
        tl.store(p_factor + 2 * CHUNK + o_t, b_nk * tl.exp2((b_hi_last - b_hi) + (b_lo_last - b_lo)))
        tl.store(p_factor + 3 * CHUNK, tl.exp2(b_hi_last + b_lo_last))

        # Inverses of unit lower triangular blocks, doubling their size: [[P, 0], [R, Q]]^-1 has -Q^-1 R P^-1
        # below. Up to 16 the four diagonal blocks are a batch of small products, then the whole chunk is one.
        b_a = tl.where(o_i > o_j, b_kk * b_decay * b_beta[:, None], 0.0)
        b_d = tl.sum(tl.where(m_diagonal, tl.reshape(b_a, (4, 16, 4, 16)), 0.0), 2)
        b_x = tl.where((o_16[:, None] == o_16[None, :])[None], 1.0, 0.0)
        b_x -= tl.where((o_16[:, None] // 2 == o_16[None, :] // 2)[None], b_d, 0.0)
        for i_level in tl.static_range(1, 4):
            m_level = o_16[:, None] // (2 << i_level) == o_16[None, :] // (2 << i_level)
            m_level = m_level & (o_16[:, None] // (1 << i_level) != o_16[None, :] // (1 << i_level))
            b_r = _solve_dot(b_x, tl.where(m_level[None], b_d, 0.0), FULL)
            b_x -= _solve_dot(b_r, b_x, FULL)
        b_x = tl.reshape(tl.where(m_diagonal, b_x[:, :, None, :], 0.0), (CHUNK, CHUNK))
        m_level = (o_i // 32 == o_j // 32) & (o_i // 16 != o_j // 16)
        b_r = _solve_dot(b_x, tl.where(m_level, b_a, 0.0), FULL)
        b_x -= _solve_dot(b_r, b_x, FULL)
        b_r = _solve_dot(b_x, tl.where(o_i // 32 != o_j // 32, b_a, 0.0), FULL)
        b_x -= _solve_dot(b_r, b_x, FULL)
        tl.store(p_inverse + p_block + o_block, (b_x * b_beta[None, :]).to(p_inverse.dtype.element_ty))


@triton.jit
def _scan_chunk(
    b_s,
    p_q,
    p_k,
    p_v,
    p_inverse,
    p_scores,
    p_factors,
    p_out,
    o_v,
    rows,
    s_qt: tl.constexpr,
    s_kt: tl.constexpr,
    s_vt: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Writes the output of one chunk, of `rows` tokens where MASKED else 64; returns the state after it."""
    dtype = p_q.dtype.element_ty
    o_t = tl.arange(0, CHUNK)
    o_k = tl.arange(0, BK)
    o_block = o_t[:, None] * CHUNK + o_t[None, :]
    o_rows = o_t[:, None]
    p_q += o_rows * s_qt + o_k[None, :]
    p_k += o_rows * s_kt + o_k[None, :]
    p_v += o_rows * s_vt + o_v[None, :]
    p_out += o_rows * (HV * V) + o_v[None, :]
    if MASKED:
        m_k = (o_rows < rows) & (o_k < K)[None, :]
        m_v = (o_rows < rows) & (o_v < V)[None, :]
        b_k = tl.load(p_k, mask=m_k, other=0.0)
        b_q = tl.load(p_q, mask=m_k, other=0.0)
        b_v = tl.load(p_v, mask=m_v, other=0.0)
    else:
        b_k = tl.load(p_k)
        b_q = tl.load(p_q)
        b_v = tl.load(p_v)
    b_inverse = tl.load(p_inverse + o_block)
    b_scores = tl.load(p_scores + o_block)
    b_from = tl.load(p_factors + o_t)
    b_read = tl.load(p_factors + CHUNK + o_t)
    b_write = tl.load(p_factors + 2 * CHUNK + o_t)
    b_decay = tl.load(p_factors + 3 * CHUNK)

    b_low = b_s.to(dtype)
    b_u = tl.dot(tl.trans(b_v), tl.trans(b_inverse), input_precision="ieee")
    b_r = tl.dot(b_low, tl.trans(b_k), input_precision="ieee")
    b_r = (b_r * -b_from[None, :]).to(dtype)
    b_u = tl.dot(b_r, tl.trans(b_inverse), acc=b_u, input_precision="ieee")
    b_o = tl.dot(b_low, tl.trans(b_q), input_precision="ieee")
    b_uw = (b_u * b_write[None, :]).to(dtype)
    b_s = tl.dot(b_uw, b_k, acc=b_s * b_decay, input_precision="ieee")
    b_o = tl.dot(b_u.to(dtype), tl.trans(b_scores), acc=b_o * b_read[None, :], input_precision="ieee")
    b_o = tl.trans(b_o).to(dtype)
    if MASKED:
        tl.store(p_out, b_o, mask=m_v)
    else:
        tl.store(p_out, b_o)
    return b_s


@triton.jit
def _scan(
    p_q,
    p_k,
    p_v,
    p_inverse,
    p_scores,
    p_factors,
    p_state,
    p_out,
    p_sequences,
    p_cu_seqlens,
    p_read_slots,
    p_write_slots,
    p_has_initial_state,
    s_slot,
    s_qt: tl.constexpr,
    s_qh: tl.constexpr,
    s_kt: tl.constexpr,
    s_kh: tl.constexpr,
    s_vt: tl.constexpr,
    s_vh: tl.constexpr,
    HV: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    STAGES: tl.constexpr,
):
    i_hv = tl.program_id(1)
    i_n = tl.load(p_sequences + 2 * tl.program_id(2))
    i_c = tl.load(p_sequences + 2 * tl.program_id(2) + 1).to(tl.int64)
    row = tl.load(p_cu_seqlens + i_n).to(tl.int64)
    rows = (tl.load(p_cu_seqlens + i_n + 1) - row).to(tl.int32)
    read = tl.load(p_read_slots + i_n)
    write = tl.load(p_write_slots + i_n)
    has = tl.load(p_has_initial_state + i_n)

    i_h = i_hv // GROUP
    p_q += row * s_qt + i_h * s_qh
    p_k += row * s_kt + i_h * s_kh
    p_v += row * s_vt + i_hv * s_vh
    p_out += (row * HV + i_hv) * V
    p_inverse += (i_c * HV + i_hv) * (CHUNK * CHUNK)
    p_scores += (i_c * HV + i_hv) * (CHUNK * CHUNK)
    p_factors += (i_c * HV + i_hv) * (4 * CHUNK)

    o_k = tl.arange(0, BK)
    o_v = tl.program_id(0) * BV + tl.arange(0, BV)
    if write < 0:  # padding
        o_t = tl.arange(0, CHUNK)
        for i_t in range(0, rows, CHUNK):
            m_v = (i_t + o_t < rows)[:, None] & (o_v < V)[None, :]
            p_row = p_out + (i_t + o_t)[:, None].to(tl.int64) * (HV * V)
            tl.store(p_row + o_v[None, :], tl.zeros((CHUNK, BV), p_out.dtype.element_ty), mask=m_v)
        return

    o_state = (i_hv * V + o_v)[:, None] * K + o_k[None, :]
    m_read = (o_v < tl.where(has, tl.where(read >= 0, V, 0), 0))[:, None] & (o_k < K)[None, :]
    m_write = (o_v < V)[:, None] & (o_k < K)[None, :]
    b_s = tl.load(p_state + read * s_slot + o_state, mask=m_read, other=0.0).to(tl.float32)
    whole = rows // CHUNK * CHUNK
    if STAGES == 1 or K != BK or V % BV != 0:
        whole = 0
    for _ in tl.range(0, whole, CHUNK, num_stages=STAGES):
        b_s = _scan_chunk(
            b_s, p_q, p_k, p_v, p_inverse, p_scores, p_factors, p_out, o_v, CHUNK,
            s_qt, s_kt, s_vt, HV, K, V, BK, False,
        )  # fmt: skip
        p_q += CHUNK * s_qt
        p_k += CHUNK * s_kt
        p_v += CHUNK * s_vt
        p_out += CHUNK * HV * V
        p_inverse += HV * CHUNK * CHUNK
        p_scores += HV * CHUNK * CHUNK
        p_factors += HV * 4 * CHUNK
    for i_t in tl.range(whole, rows, CHUNK, num_stages=1):
        b_s = _scan_chunk(
            b_s, p_q, p_k, p_v, p_inverse, p_scores, p_factors, p_out, o_v, rows - i_t,
            s_qt, s_kt, s_vt, HV, K, V, BK, True,
        )  # fmt: skip
        p_q += CHUNK * s_qt
        p_k += CHUNK * s_kt
        p_v += CHUNK * s_vt
        p_out += CHUNK * HV * V
        p_inverse += HV * CHUNK * CHUNK
        p_scores += HV * CHUNK * CHUNK
        p_factors += HV * 4 * CHUNK
    tl.store(p_state + write * s_slot + o_state, b_s.to(p_state.dtype.element_ty), mask=m_write)


@triton.jit
def _step(
    p_q,
    p_k,
    p_v,
    p_g,
    p_beta,
    p_state,
    p_out,
    p_read_slots,
    p_write_slots,
    scale,
    s_qt,
    s_qh,
    s_kt,
    s_kh,
    s_vt,
    s_vh,
    s_gt,
    s_gh,
    s_bt,
    s_bh,
    s_slot,
    HV,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    L2NORM: tl.constexpr,
):
    i_v = tl.program_id(0)
    i_hv = tl.program_id(1)
    i_n = tl.program_id(2).to(tl.int64)
    read = tl.load(p_read_slots + i_n)
    write = tl.load(p_write_slots + i_n)

    o_k = tl.arange(0, BK)
    o_v = i_v * BV + tl.arange(0, BV)
    m_k = o_k < K
    m_v = o_v < V
    o_state = (i_hv * V + o_v)[:, None] * K + o_k[None, :]
    m_read = (o_v < tl.where(read >= 0, V, 0))[:, None] & m_k[None, :]
    m_write = (o_v < tl.where(write >= 0, V, 0))[:, None] & m_k[None, :]
    b_s = tl.load(p_state + read * s_slot + o_state, mask=m_read, other=0.0).to(tl.float32)

    i_h = i_hv // GROUP
    b_q = tl.load(p_q + i_n * s_qt + i_h * s_qh + o_k, mask=m_k, other=0.0).to(tl.float32)
    b_k = tl.load(p_k + i_n * s_kt + i_h * s_kh + o_k, mask=m_k, other=0.0).to(tl.float32)
    b_v = tl.load(p_v + i_n * s_vt + i_hv * s_vh + o_v, mask=m_v, other=0.0).to(tl.float32)
    b_g = tl.exp(tl.load(p_g + i_n * s_gt + i_hv * s_gh))
    b_beta = tl.load(p_beta + i_n * s_bt + i_hv * s_bh).to(tl.float32)
    if L2NORM:
        b_k *= tl.rsqrt(tl.sum(b_k * b_k, 0) + 1e-6)
        b_q *= tl.rsqrt(tl.sum(b_q * b_q, 0) + 1e-6)
    b_q *= scale

    # Both readouts are of the old state, so that neither waits for the other: S' q = exp(g) S q + u (k . q).
    b_u = b_beta * (b_v - b_g * tl.sum(b_s * b_k[None, :], 1))
    b_o = b_g * tl.sum(b_s * b_q[None, :], 1) + b_u * tl.sum(b_k * b_q, 0)
    b_o = tl.where(write >= 0, b_o, 0.0)
    tl.store(p_out + (i_n * HV + i_hv) * V + o_v, b_o.to(p_out.dtype.element_ty), mask=m_v)
    b_s = b_s * b_g + b_u[:, None] * b_k[None, :]
    tl.store(p_state + write * s_slot + o_state, b_s.to(p_state.dtype.element_ty), mask=m_write)


_launch_prepare = Launcher(_prepare)
_launch_scan = Launcher(_scan)
_launch_step = Launcher(_step)


@dataclass(frozen=True, slots=True)
class _Chunks:
    """What `_prepare` and `_scan` walk.

    Attributes:
        chunks: [chunks, 4] int32, as `split_rows` gives it.
        sequences: [sequences that are not empty, 2] int32, longest first: sequence, its first chunk.
    """

    chunks: torch.Tensor
    sequences: torch.Tensor


class TritonGatedDelta(GatedDeltaBackend):
    """The gated delta rule for compute capability 8.0 and later; any head sizes, groups and strides."""

    def plan(self, phase: Phase, batch: StateBatch) -> _Chunks | None:
        """Cuts the sequences of a prefill into chunks of 64."""
        if phase == "decode":
            return None
        chunks = split_rows(batch.seqlens, CHUNK.value)
        first = np.flatnonzero(chunks[:, 1] == 0)
        sequences = np.stack([chunks[first, 0], first.astype(np.int32)], axis=1)
        lengths = np.asarray(batch.seqlens)[sequences[:, 0]]
        sequences = sequences[np.argsort(-lengths, kind="stable")]
        device = batch.cu_seqlens.device
        return _Chunks(to_device(chunks, device), to_device(sequences, device))

    def prefill(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        g: torch.Tensor,
        beta: torch.Tensor,
        state: torch.Tensor,
        out: torch.Tensor,
        batch: StateBatch,
        plan: object,
        scale: float,
        qk_l2norm: bool,
    ) -> None:
        """Runs T packed tokens of N sequences of any length."""
        assert isinstance(plan, _Chunks)
        chunks = plan.chunks.shape[0]
        if chunks == 0:
            return
        _, heads, key_size = q.shape
        _, value_heads, value_size = v.shape
        group = value_heads // heads
        block_k = max(16, triton.next_power_of_2(key_size))
        block_v = max(16, triton.next_power_of_2(value_size))
        full = q.dtype == torch.float32
        options = launch_options(q.dtype)
        blocks = q.new_empty((2, chunks * value_heads, CHUNK.value, CHUNK.value))
        factors = torch.empty((chunks * value_heads, 4 * CHUNK.value), dtype=torch.float32, device=q.device)
        _launch_prepare(
            (chunks * heads, 1, 1),
            (q, k, g, beta, plan.chunks, blocks[0], blocks[1], factors),
            (scale, *q.stride()[:2], *k.stride()[:2], *g.stride(), *beta.stride()),
            (heads, group, key_size, block_k, qk_l2norm, full),
            num_warps=8 if full else 2,
            **options,
        )
        sequences = plan.sequences.shape[0]
        if full:
            block_v, warps, stages = min(block_v, 16), 8, 1
        elif not has_large_shared_memory(q.device):
            block_v, warps, stages = (min(block_v, 32), 4, 1) if block_k > 128 else (min(block_v, 64), 4, 2)
        elif block_k > 128:
            block_v, warps, stages = min(block_v, 64), 4, 2
        elif block_v >= 128 and value_heads * sequences > 64:
            block_v, warps, stages = 128, 8, 3  # fewer reads of q, k and the blocks
        else:
            block_v, warps, stages = min(block_v, 64), 4, 3  # more programs
        strides = (*q.stride()[:2], *k.stride()[:2], *v.stride()[:2])
        slots = (batch.cu_seqlens, batch.read_slots, batch.write_slots, batch.has_initial_state)
        _launch_scan(
            (triton.cdiv(value_size, block_v), value_heads, sequences),
            (q, k, v, blocks[0], blocks[1], factors, state, out, plan.sequences, *slots),
            (state.stride(0),),
            (*strides, value_heads, group, key_size, value_size, block_k, block_v, stages),
            num_warps=warps,
            num_stages=stages,
            **options,
        )

    def decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        g: torch.Tensor,
        beta: torch.Tensor,
        state: torch.Tensor,
        out: torch.Tensor,
        batch: StateBatch,
        plan: object,
        scale: float,
        qk_l2norm: bool,
    ) -> None:
        """Runs one token a sequence."""
        sequences, heads, key_size = q.shape
        _, value_heads, value_size = v.shape
        if sequences == 0:
            return
        block_v = min(4 if sequences == 1 else 8, triton.next_power_of_2(value_size))
        block_k = triton.next_power_of_2(key_size)
        _launch_step(
            (triton.cdiv(value_size, block_v), value_heads, sequences),
            (q, k, v, g, beta, state, out, batch.read_slots, batch.write_slots),
            (
                scale,
                *q.stride()[:2],
                *k.stride()[:2],
                *v.stride()[:2],
                *g.stride(),
                *beta.stride(),
                state.stride(0),
                value_heads,
            ),
            (value_heads // heads, key_size, value_size, block_k, block_v, qk_l2norm),
            num_warps=1,
        )


__all__ = ["TritonGatedDelta"]
