"""Verifies drafted tokens: computes their outputs, and the record with which they are committed.

The rows of a sequence form a tree or a chain. S is the state before all rows, and G_i the sum of the log
decays on the path to row i, including row i. Row i adds u_i k_i^T to the state. With j the ancestors of i:

    u_i = beta_i (v_i - exp(G_i) S k_i - sum over j of exp(G_i - G_j) (k_i . k_j) u_j)
    out_i = scale (exp(G_i) S q_i + sum over j and i itself of exp(G_i - G_j) (q_i . k_j) u_j)

Rows are processed in blocks of 16, and each block reads S once. Within a block, a triangular solve yields u,
as in a chunk of a prefill. The terms of the sums that belong to earlier blocks are added block by block.

With a deferred commit, the pending rows of an earlier verification are applied to each part of the state when
the part is read. They are applied in a pass of their own if there may be more than 16 of them, or if the
sequence has no rows in this verification. This pass comes before the rows of this verification.

G is kept as an integer part and a remainder, so that differences keep their small digits after a huge gate.
"""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from switchrail.ops.batch import DeferredBatch, StateBatch
from switchrail.ops.delta_call import DeltaCall

from switchrail_kernels.alignment import is_transposed
from switchrail_kernels.constants import LOG2E
from switchrail_kernels.delta.call import gate_constants, gate_numbers, gate_tensors, outer_strides
from switchrail_kernels.delta.gates import log2_decay, write_weight
from switchrail_kernels.delta.solve import invert_16
from switchrail_kernels.drafts import DRAFT_ROWS as ROWS
from switchrail_kernels.drafts import Drafts, Record, apply_rows
from switchrail_kernels.launch import TABLES, Launcher, launch_options, padded

UNIT = tl.constexpr(1 / 256)
"""Unit of the integer part of G, in base 2.

Even after 40,000 rows of the smallest decay, the integer part fits in 32 bits.
"""

PROGRAMS = 256
"""The number of programs that keeps a GPU busy.

To reach it, blocks of values are halved, down to 16, unless channels have decays of their own.
"""


@triton.jit
def _difference(b_hi, b_lo, hi, lo):
    """The decay between two rows, from the integer part and the remainder of each row's G."""
    return tl.exp2((b_hi - hi).to(tl.float32) * UNIT + (b_lo - lo))


@triton.jit
def _before(p_paths, i_j, m_r):
    """[16, 16]: whether each path at `p_paths` contains each row of the block that begins at `i_j`."""
    b_bits = tl.load(p_paths + i_j // 32, mask=m_r, other=0)
    return ((b_bits[:, None] >> (i_j % 32 + tl.arange(0, ROWS))[None, :]) & 1) != 0


@triton.jit
def _add_pairs(
    b_a, b_p, b_k, b_q, b_hi, b_lo,
    p_k, p_sums,
    m_before, count, o_k,
    s_kt, s_sums,
    K: tl.constexpr,
):  # fmt: skip
    """Add sums over some channels: of k_i exp(G_i - G_j) k_j to `b_a`, of q_i exp(G_i - G_j) k_j to `b_p`.

    Rows i are the block of `b_k`, `b_q`, `b_hi` and `b_lo` [16, channels]. Rows j are the `count` rows at
    `p_k` and `p_sums`, masked by `m_before`.
    """
    o_t = tl.arange(0, ROWS)
    for j in range(count):
        b_kj = tl.load(p_k + j * s_kt + o_k, mask=o_k < K, other=0.0).to(tl.float32)
        b_hij = tl.load(p_sums + j * s_sums + o_k, mask=o_k < K, other=0)
        b_loj = tl.load(p_sums + j * s_sums + K + o_k, mask=o_k < K, other=0)
        m_j = o_t[None, :] == j
        is_after = tl.sum((m_j & m_before).to(tl.int32), 1) > 0
        b_x = _difference(b_hi, b_lo, b_hij[None, :], b_loj.to(tl.float32, bitcast=True)[None, :])
        b_x = tl.where(is_after[:, None], b_x, 0.0) * b_kj[None, :]
        b_a += tl.where(m_j, tl.sum(b_k * b_x, 1)[:, None], 0.0)
        b_p += tl.where(m_j, tl.sum(b_q * b_x, 1)[:, None], 0.0)
    return b_a, b_p


@triton.jit(do_not_specialize_on_alignment=TABLES)
def _verify(
    p_q, p_k, p_v, p_g, p_beta, p_rate, p_bias, p_state, p_out, p_paths, p_u, p_keys, p_decays, p_sums,
    p_cu_seqlens, p_read_slots, p_has_initial_state, p_pending_records, p_pending_rows, p_records,
    scale, lower, beta_scale,
    s_qt, s_qh, s_kt, s_kh, s_vt, s_vh, s_gt, s_gh, s_bt, s_bh, s_slot,
    words, most,
    HV: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr,
    BV: tl.constexpr, L2NORM: tl.constexpr, CHANNELS: tl.constexpr, FULL: tl.constexpr, STAGES: tl.constexpr,
    GATE: tl.constexpr, BIAS: tl.constexpr, RAW_BETA: tl.constexpr, KV: tl.constexpr, DEFERRED: tl.constexpr,
):  # fmt: skip
    i_b = tl.program_id(0)
    i_hv = tl.program_id(1)
    i_n = tl.program_id(2)
    row = tl.load(p_cu_seqlens + i_n).to(tl.int64)
    rows = tl.load(p_cu_seqlens + i_n + 1) - row
    read = tl.load(p_read_slots + i_n)
    o_t = tl.arange(0, ROWS)
    o_v = i_b * BV + tl.arange(0, BV)
    m_v = (o_v < V)[:, None]
    p_out += (row * HV + i_hv) * V
    if read < 0:  # padding
        for i_t in range(0, rows, ROWS):
            o_r = (i_t + o_t)[None, :]
            b_o = tl.zeros((BV, ROWS), p_out.dtype.element_ty)
            tl.store(p_out + o_r * (HV * V) + o_v[:, None], b_o, mask=m_v & (o_r < rows))
        return
    PRECISION: tl.constexpr = "ieee" if FULL else "tf32x3"
    CHANNEL_COUNT: tl.constexpr = K if CHANNELS else 1
    PART: tl.constexpr = min(BK, 32)
    i_h = i_hv // GROUP
    if KV:
        p_state += read * s_slot + i_hv * (V * K) + o_v[:, None]
    else:
        p_state += read * s_slot + (i_hv * V + o_v)[:, None] * K
    kept = row  # the sequence's first row in the record
    if DEFERRED:
        pending = tl.load(p_pending_records + i_n)
        old = tl.maximum(pending, 0).to(tl.int64) * most
        p_rows = p_pending_rows + i_n * most
        p_old_u = p_u + (old * HV + i_hv) * V
        p_old_k = p_keys + (old * (HV // GROUP) + i_h) * K
        p_old_g = p_decays + (old * HV + i_hv) * CHANNEL_COUNT
        if (pending >= 0) & ((rows == 0) | (DEFERRED == 1)):
            for i_k in range(0, BK, PART):
                o_k = i_k + tl.arange(0, PART)
                p_s = p_state + ((o_k * V)[None, :] if KV else o_k[None, :])
                m_s = m_v & (o_k < K)[None, :]
                b_s = tl.load(p_s, mask=m_s, other=0.0).to(tl.float32)
                b_s = apply_rows(
                    b_s, p_old_u, p_old_k, p_old_g, p_rows, o_k, o_k < K, o_v, o_v < V, most, HV, GROUP, K, V,
                    CHANNELS, FULL, False,
                )  # fmt: skip
                tl.store(p_s, b_s.to(p_state.dtype.element_ty), mask=m_s)
            tl.debug_barrier()  # the rows read the new state
        kept = tl.load(p_records + i_n).to(tl.int64) * most
    if rows == 0:
        return

    p_q += row * s_qt + i_h * s_qh
    p_k += row * s_kt + i_h * s_kh
    p_v += row * s_vt + i_hv * s_vh
    p_g += row * s_gt + i_hv * s_gh
    p_beta += row * s_bt + i_hv * s_bh
    p_paths += row * words
    p_keys += (kept * (HV // GROUP) + i_h) * K
    p_u += (kept * HV + i_hv) * V
    p_decays += (kept * HV + i_hv) * CHANNEL_COUNT
    p_sums += (row * HV + i_hv) * (2 * CHANNEL_COUNT)
    s_sums: tl.constexpr = HV * 2 * CHANNEL_COUNT
    b_rate = 0.0
    b_bias = 0.0
    if GATE != 0:
        b_rate = tl.exp(tl.load(p_rate + i_hv).to(tl.float32))
    if BIAS:
        if CHANNELS:
            p_bias += i_hv * K
        else:
            b_bias = tl.load(p_bias + i_hv).to(tl.float32)
    key_rows = tl.where((i_b == 0) & (i_hv % GROUP == 0), rows, 0)  # one program per key head stores keys

    has = tl.load(p_has_initial_state + i_n)
    m_state = (o_v < tl.where(has, V, 0))[:, None]
    if DEFERRED == 2:
        # The pending rows are applied to each part of the state when it is read.
        olds = tl.where(pending >= 0, most, 0)
        m_old = tl.load(p_rows + o_t, mask=o_t < most, other=0) != 0
        m_later = tl.load(p_rows + o_t + 1, mask=o_t + 1 < most, other=0) != 0
        m_out = (o_v < tl.where(pending >= 0, V, 0))[:, None]
        p_ut = p_old_u + o_t[None, :] * (HV * V) + o_v[:, None]
        b_ut = tl.load(p_ut, mask=(o_t < olds)[None, :] & m_v, other=0.0)
        b_ut = tl.where(m_old[None, :], b_ut, 0.0)
        b_from = tl.zeros((ROWS,), tl.float32)
        if not CHANNELS:
            b_later = tl.load(p_old_g + (o_t + 1) * HV, mask=o_t + 1 < olds, other=0.0)
            b_from = tl.exp2(tl.cumsum(tl.where(m_later, b_later, 0.0) * LOG2E, 0, reverse=True))
            b_all = tl.load(p_old_g + o_t * HV, mask=o_t < olds, other=0.0)
            b_all = tl.exp2(tl.sum(tl.where(m_old, b_all, 0.0), 0) * LOG2E)
    for i_t in range(0, rows, ROWS):
        o_r = i_t + o_t
        m_r = o_r < rows
        shift = i_t % 32
        count = tl.minimum(rows - i_t, ROWS)
        b_beta = tl.load(p_beta + o_r * s_bt, mask=m_r, other=0.0)
        b_beta = tl.where(m_r, write_weight(b_beta, beta_scale, RAW_BETA), 0.0)
        b_bits = tl.load(p_paths + o_r * words + i_t // 32, mask=m_r, other=0)
        m_path = ((b_bits[:, None] >> (shift + o_t)[None, :]) & 1) != 0

        # G of a row is G of its nearest ancestor in an earlier block, plus the log decays of the path's rows
        # in this block.
        entry = tl.full((ROWS,), -1, tl.int32)
        for i_j in range(0, i_t, ROWS):
            m_before = _before(p_paths + o_r * words, i_j, m_r)
            entry = tl.maximum(entry, tl.max(tl.where(m_before, (i_j + o_t)[None, :], -1), 1).to(tl.int32))
        p_entry = p_sums + entry.to(tl.int64) * s_sums
        p_sum = p_sums + o_r * s_sums
        if not CHANNELS:
            b_g = tl.load(p_g + o_r * s_gt, mask=m_r, other=0.0)
            b_g = tl.where(m_r, log2_decay(b_g, b_rate, b_bias, lower, GATE), 0.0)
            b_whole = tl.floor(b_g * (1 / UNIT))
            b_hi = tl.load(p_entry, mask=entry >= 0, other=0)
            b_lo = tl.load(p_entry + 1, mask=entry >= 0, other=0).to(tl.float32, bitcast=True)
            b_hi += tl.sum(tl.where(m_path, b_whole.to(tl.int32)[None, :], 0), 1)
            b_lo += tl.sum(tl.where(m_path, (b_g - b_whole * UNIT)[None, :], 0.0), 1)
            tl.store(p_sum, b_hi, mask=m_r)
            tl.store(p_sum + 1, b_lo.to(tl.int32, bitcast=True), mask=m_r)
            tl.store(p_decays + o_r * HV, b_g * (1 / LOG2E), mask=m_r)

        b_nk = tl.zeros((ROWS,), tl.float32)
        b_nq = tl.zeros((ROWS,), tl.float32)
        b_a = tl.zeros((ROWS, ROWS), tl.float32)
        b_p = tl.zeros((ROWS, ROWS), tl.float32)
        b_r = tl.zeros((BV, ROWS), tl.float32)
        b_o = tl.zeros((BV, ROWS), tl.float32)
        for i_k in tl.range(0, BK, PART, num_stages=STAGES):
            o_k = i_k + tl.arange(0, PART)
            m_k = m_r[:, None] & (o_k < K)[None, :]
            b_k = tl.load(p_k + o_r[:, None] * s_kt + o_k[None, :], mask=m_k, other=0.0)
            b_q = tl.load(p_q + o_r[:, None] * s_qt + o_k[None, :], mask=m_k, other=0.0)
            o_s = (o_k * V)[None, :] if KV else o_k[None, :]
            b_s = tl.load(p_state + o_s, mask=m_state & (o_k < K)[None, :], other=0.0).to(tl.float32)
            if DEFERRED == 2:
                m_old_k = (o_t < olds)[:, None] & (o_k < K)[None, :]
                p_ok = p_old_k + o_t[:, None] * (HV // GROUP * K) + o_k[None, :]
                b_ok = tl.load(p_ok, mask=m_old_k, other=0.0).to(tl.float32)
                b_ok = tl.where(m_old[:, None], b_ok, 0.0)
                if CHANNELS:
                    p_og = p_old_g + o_t[:, None] * (HV * K) + o_k[None, :]
                    b_og = tl.load(p_og, mask=m_old_k, other=0.0) * LOG2E
                    b_og = tl.where(m_old[:, None], b_og, 0.0)
                    m_later_k = (o_t + 1 < olds)[:, None] & (o_k < K)[None, :]
                    b_later = tl.load(p_og + HV * K, mask=m_later_k, other=0.0) * LOG2E
                    b_later = tl.where(m_later[:, None], b_later, 0.0)
                    b_ok *= tl.exp2(tl.cumsum(b_later, 0, reverse=True))
                    b_s *= tl.exp2(tl.sum(b_og, 0))[None, :]
                else:
                    b_ok *= b_from[:, None]
                    b_s *= b_all
                b_s = tl.dot(b_ut, b_ok, acc=b_s, input_precision="ieee" if FULL else "tf32")
                b_new = b_s.to(p_state.dtype.element_ty)
                tl.store(p_state + o_s, b_new, mask=m_out & (o_k < K)[None, :])
                b_s = b_new.to(tl.float32)
            p_key = p_keys + o_r[:, None] * (HV // GROUP * K) + o_k[None, :]
            tl.store(p_key, b_k, mask=(o_r < key_rows)[:, None] & (o_k < K)[None, :])
            if not CHANNELS:
                b_a = tl.dot(b_k, tl.trans(b_k), acc=b_a, input_precision="ieee")
                b_p = tl.dot(b_q, tl.trans(b_k), acc=b_p, input_precision="ieee")
            b_k = b_k.to(tl.float32)
            b_q = b_q.to(tl.float32)
            b_nk += tl.sum(b_k * b_k, 1)
            b_nq += tl.sum(b_q * b_q, 1)
            if CHANNELS:
                b_biases = 0.0
                if BIAS:
                    b_biases = tl.load(p_bias + o_k, mask=o_k < K, other=0.0).to(tl.float32)
                m_entry = (entry >= 0)[:, None] & (o_k < K)[None, :]
                b_hi = tl.load(p_entry[:, None] + o_k[None, :], mask=m_entry, other=0)
                b_lo = tl.load(p_entry[:, None] + K + o_k[None, :], mask=m_entry, other=0)
                b_lo = b_lo.to(tl.float32, bitcast=True)
                for j in range(count):
                    b_g = tl.load(p_g + (i_t + j) * s_gt + o_k, mask=o_k < K, other=0.0)
                    b_g = log2_decay(b_g, b_rate, b_biases, lower, GATE)
                    b_whole = tl.floor(b_g * (1 / UNIT))
                    tl.store(p_decays + (i_t + j) * (HV * K) + o_k, b_g * (1 / LOG2E), mask=o_k < K)
                    is_on = (((b_bits >> (shift + j)) & 1) != 0)[:, None]
                    b_hi += tl.where(is_on, b_whole.to(tl.int32)[None, :], 0)
                    b_lo += tl.where(is_on, (b_g - b_whole * UNIT)[None, :], 0.0)
                tl.store(p_sum[:, None] + o_k[None, :], b_hi, mask=m_k)
                tl.store(p_sum[:, None] + K + o_k[None, :], b_lo.to(tl.int32, bitcast=True), mask=m_k)
                tl.debug_barrier()  # the sums are read row by row below
                b_a, b_p = _add_pairs(
                    b_a, b_p, b_k, b_q, b_hi, b_lo, p_k + i_t * s_kt, p_sums + i_t * s_sums, m_path, count,
                    o_k, s_kt, s_sums, K,
                )  # fmt: skip
                b_x = _difference(b_hi, b_lo, 0, 0.0)
                b_k *= b_x
                b_q *= b_x
            b_r = tl.dot(b_s, tl.trans(b_k), acc=b_r, input_precision=PRECISION)
            b_o = tl.dot(b_s, tl.trans(b_q), acc=b_o, input_precision=PRECISION)
        if not CHANNELS:
            b_x = _difference(b_hi[:, None], b_lo[:, None], b_hi[None, :], b_lo[None, :])
            b_x = tl.where(m_path, b_x, 0.0)
            b_a *= b_x
            b_p *= b_x
            b_x = _difference(b_hi, b_lo, 0, 0.0)[None, :]
            b_r *= b_x
            b_o *= b_x

        for i_j in range(0, i_t, ROWS):
            m_before = _before(p_paths + o_r * words, i_j, m_r)
            b_aj = tl.zeros((ROWS, ROWS), tl.float32)
            b_pj = tl.zeros((ROWS, ROWS), tl.float32)
            for i_k in range(0, BK, PART):
                o_k = i_k + tl.arange(0, PART)
                m_k = m_r[:, None] & (o_k < K)[None, :]
                b_k = tl.load(p_k + o_r[:, None] * s_kt + o_k[None, :], mask=m_k, other=0.0)
                b_q = tl.load(p_q + o_r[:, None] * s_qt + o_k[None, :], mask=m_k, other=0.0)
                if CHANNELS:
                    b_hi = tl.load(p_sum[:, None] + o_k[None, :], mask=m_k, other=0)
                    b_lo = tl.load(p_sum[:, None] + K + o_k[None, :], mask=m_k, other=0)
                    b_aj, b_pj = _add_pairs(
                        b_aj, b_pj, b_k.to(tl.float32), b_q.to(tl.float32), b_hi,
                        b_lo.to(tl.float32, bitcast=True), p_k + i_j * s_kt, p_sums + i_j * s_sums, m_before,
                        ROWS, o_k, s_kt, s_sums, K,
                    )  # fmt: skip
                else:
                    p_kj = p_k + (i_j + o_t)[:, None] * s_kt + o_k[None, :]
                    b_kj = tl.trans(tl.load(p_kj, mask=(o_k < K)[None, :], other=0.0))
                    b_aj = tl.dot(b_k, b_kj, acc=b_aj, input_precision="ieee")
                    b_pj = tl.dot(b_q, b_kj, acc=b_pj, input_precision="ieee")
            if not CHANNELS:
                b_hij = tl.load(p_sums + (i_j + o_t) * s_sums)[None, :]
                b_loj = tl.load(p_sums + (i_j + o_t) * s_sums + 1).to(tl.float32, bitcast=True)[None, :]
                b_xj = tl.where(m_before, _difference(b_hi[:, None], b_lo[:, None], b_hij, b_loj), 0.0)
                b_aj *= b_xj
                b_pj *= b_xj
            b_u = tl.load(p_u + (i_j + o_t)[None, :] * (HV * V) + o_v[:, None], mask=m_v, other=0.0)
            b_r = tl.dot(b_u, tl.trans(b_aj), acc=b_r, input_precision=PRECISION)
            b_o = tl.dot(b_u, tl.trans(b_pj), acc=b_o, input_precision=PRECISION)

        if L2NORM:
            b_nk = tl.rsqrt(b_nk + 1e-6)
            b_nq = tl.rsqrt(b_nq + 1e-6) * scale
        else:
            b_nk = tl.full((ROWS,), 1.0, tl.float32)
            b_nq = tl.full((ROWS,), 1.0, tl.float32) * scale
        b_w = b_beta * b_nk
        b_a = tl.where(m_path & (o_t[:, None] != o_t[None, :]), b_a * (b_w * b_nk)[:, None], 0.0)
        b_a = tl.reshape(invert_16(tl.reshape(b_a, (1, ROWS, ROWS)), True), (ROWS, ROWS))
        b_v = tl.load(p_v + o_r[None, :] * s_vt + o_v[:, None], mask=m_r[None, :] & m_v, other=0.0)
        b_r = (b_v.to(tl.float32) - b_r * b_nk[None, :]) * b_w[None, :]
        b_u = tl.dot(b_r, tl.trans(b_a), input_precision=PRECISION)
        b_p = tl.where(m_path, b_p, 0.0)
        b_o = tl.dot(b_u, tl.trans(b_p), acc=b_o, input_precision=PRECISION) * b_nq[None, :]
        o_at = o_r[None, :] * (HV * V) + o_v[:, None]
        tl.store(p_u + o_at, b_u, mask=m_r[None, :] & m_v)
        tl.store(p_out + o_at, b_o.to(p_out.dtype.element_ty), mask=m_r[None, :] & m_v)
        tl.debug_barrier()  # later blocks read the results


_launch_verify = Launcher(_verify)


def verify(call: DeltaCall, batch: StateBatch, plan: Drafts, *, channels: bool) -> Record:
    """Run drafted rows, for `gated_delta` or (with `channels`) for `kda`, and return their record."""
    layer, q, k, v, g, beta, out = call
    total, heads, key_size = k.shape
    _, value_heads, value_size = v.shape
    deferred = 0  # 1: pending rows are applied in a pass of their own; 2: while the state is read
    if isinstance(batch, DeferredBatch):
        record = Record.kept(layer, batch, k, v, channels=channels)
        tables = batch.pending_records, batch.pending_rows, batch.records
        most = batch.pending_rows.shape[1]
        deferred = 2 if most <= ROWS.value else 1
    else:
        record = Record.empty(k, v, channels=channels)
        tables, most = (batch.read_slots,) * 3, 0
    if total or deferred:
        sums = torch.empty((total, *record.g.shape[1:], 2), dtype=torch.int32, device=k.device)
        block_v = min(padded(value_size, 16), 128 if channels else 64)
        values = len(batch.seqlens) * value_heads * value_size
        while not channels and block_v > 16 and values < PROGRAMS * block_v:
            block_v //= 2
        given = (q, k, v, *gate_tensors(call), layer.state, out, plan.paths)
        slots = (batch.cu_seqlens, batch.read_slots, batch.has_initial_state)
        strides = (*outer_strides(q, k, v, g, beta), layer.state.stride(0))
        sizes = (value_heads, value_heads // heads, key_size, value_size, padded(key_size, 16), block_v)
        _launch_verify(
            (-(-value_size // block_v), value_heads, len(batch.seqlens)),
            (*given, record.u, record.k, record.g, sums, *slots, *tables),
            (layer.scale, *gate_numbers(layer), *strides, plan.paths.shape[1], most),
            (
                *(*sizes, layer.qk_l2norm, channels, record.exact, 1 if channels else 3),
                *(*gate_constants(layer), is_transposed(layer.state), deferred),
            ),
            num_warps=4 if channels else 2,
            **launch_options(q.dtype),
        )
    return record
