"""Drafted tokens: their results, without a state for each, and the state after those that are accepted.

The rows of a sequence form a tree (a chain is one). With G the sum of the logs of decays on the way from the
state S to a row, that row included, and u as in the recurrence, for row i and its ancestors j:

    u_i = beta_i (v_i - exp(G_i) S k_i - sum over j of exp(G_i - G_j) (k_i . k_j) u_j)
    out_i = exp(G_i) S q_i + sum over j and i itself of exp(G_i - G_j) (q_i . k_j) u_j
    S_i = exp(G_i) S + sum over j and i itself of u_j (exp(G_i - G_j) k_j)^T

So a verification reads the state once and writes none, but k, G and u of each row, and the commit reads it
again: as many bytes in all as three states, whatever the number of rows. Rows are worked on in blocks of 16.
In each the u are found as in a chunk of the prefill; u of earlier blocks are taken off pair by pair.

G is kept in two parts, an integer and a rest, so that differences keep what is small after a huge gate.
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
from switchrail.ops.batch import VerifyBatch

from switchrail_kernels.delta.gates import Gates, log2_decay, write_weight
from switchrail_kernels.delta.solve import invert_16
from switchrail_kernels.launch import Launcher, launch_options, padded
from switchrail_kernels.tables import to_device

ROWS = tl.constexpr(16)
"""Rows of a block."""

UNIT = tl.constexpr(1 / 256)
"""Of the integer part of the sum of logs, which more than 40,000 rows of the least decays can't overflow."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """What all layers of a verification share.

    Attributes:
        table: [T, 1 + words] int32, for each row its nearest ancestor in an earlier block of 16 rows, -1 for
            none, then a bit for each row of its sequence: whether it is an ancestor.
    """

    table: torch.Tensor

    @classmethod
    def of(cls, batch: VerifyBatch) -> Drafts:
        """Finds the ancestors."""
        lengths = np.asarray(batch.seqlens, dtype=np.int64)
        starts = np.cumsum(lengths) - lengths
        parents = np.asarray(batch.parent_rows, dtype=np.int64)
        longest = int(lengths.max(initial=0))
        table = np.zeros((len(parents), 1 + max(1, -(-longest // 32))), dtype=np.uint32)
        entries = table[:, 0].view(np.int32)
        for i in range(longest):
            rows = starts[lengths > i] + i
            parent = parents[rows]
            entries[rows] = -1
            rows, parent = rows[parent >= 0], parent[parent >= 0]
            above = rows - i + parent
            table[rows, 1:] = table[above, 1:]
            table[rows, 1 + parent // 32] |= np.uint32(1) << (parent % 32).astype(np.uint32)
            entries[rows] = np.where(parent // ROWS.value == i // ROWS.value, entries[above], parent)
        return cls(to_device(table.view(np.int32), batch.cu_seqlens.device))


@dataclass(frozen=True, slots=True)
class Record:
    """What a commit needs of a verification.

    Attributes:
        keys: k, [T, H, K].
        writes: u times the factor of k's norm, [T, HV, V] float32.
        sums: G to base 2, [T, HV, 2, K or 1] int32: the integer part, and the bits of the rest.
    """

    keys: torch.Tensor
    writes: torch.Tensor
    sums: torch.Tensor


@triton.jit
def _difference(b_hi, b_lo, hi, lo):
    """What decays between two rows, by their sums."""
    return tl.exp2((b_hi - hi).to(tl.float32) * UNIT + (b_lo - lo))


@triton.jit
def _add_pairs(
    b_a,
    b_p,
    b_k,
    b_q,
    b_hi,
    b_lo,
    p_k,
    p_sums,
    m_before,
    count,
    o_k,
    s_kt,
    s_sums,
    K: tl.constexpr,
):
    """Adds sums of k_i exp(G_i - G_j) k_j over some channels, and the same of q_i: two blocks [16, 16].

    Rows i are those of the block of `b_k`, `b_q`, `b_hi` and `b_lo` [16, channels], rows j the `count` at
    `p_k` and `p_sums`; of them only those with `m_before`.
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


@triton.jit
def _verify(
    p_q,
    p_k,
    p_v,
    p_g,
    p_beta,
    p_rate,
    p_bias,
    p_state,
    p_out,
    p_table,
    p_keys,
    p_writes,
    p_sums,
    p_cu_seqlens,
    p_read_slots,
    p_has_initial_state,
    scale,
    lower,
    beta_scale,
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
    words,
    HV: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    L2NORM: tl.constexpr,
    CHANNELS: tl.constexpr,
    FULL: tl.constexpr,
    STAGES: tl.constexpr,
    GATE: tl.constexpr,
    BIAS: tl.constexpr,
    RAW_BETA: tl.constexpr,
):
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
    if rows == 0:
        return

    PRECISION: tl.constexpr = "ieee" if FULL else "tf32x3"
    CHANNEL_COUNT: tl.constexpr = K if CHANNELS else 1
    PART: tl.constexpr = min(BK, 32)
    i_h = i_hv // GROUP
    p_q += row * s_qt + i_h * s_qh
    p_k += row * s_kt + i_h * s_kh
    p_v += row * s_vt + i_hv * s_vh
    p_g += row * s_gt + i_hv * s_gh
    p_beta += row * s_bt + i_hv * s_bh
    p_table += row * (1 + words)
    p_keys += (row * (HV // GROUP) + i_h) * K
    p_writes += (row * HV + i_hv) * V
    p_sums += (row * HV + i_hv) * (2 * CHANNEL_COUNT)
    s_sums: tl.constexpr = HV * 2 * CHANNEL_COUNT
    b_rate = 0.0
    b_bias = 0.0
    if GATE != 0:
        b_rate = tl.exp(tl.load(p_rate + i_hv))
    if BIAS:
        if CHANNELS:
            p_bias += i_hv * K
        else:
            b_bias = tl.load(p_bias + i_hv).to(tl.float32)
    key_rows = tl.where((i_b == 0) & (i_hv % GROUP == 0), rows, 0)  # one program of several stores them

    has = tl.load(p_has_initial_state + i_n)
    m_state = (o_v < tl.where(has, V, 0))[:, None]
    p_state += read * s_slot + (i_hv * V + o_v)[:, None] * K
    for i_t in range(0, rows, ROWS):
        o_r = i_t + o_t
        m_r = o_r < rows
        shift = i_t % 32
        count = tl.minimum(rows - i_t, ROWS)
        b_beta = tl.load(p_beta + o_r * s_bt, mask=m_r, other=0.0)
        b_beta = tl.where(m_r, write_weight(b_beta, beta_scale, RAW_BETA), 0.0)
        p_row = p_table + o_r * (1 + words)
        entry = tl.load(p_row, mask=m_r, other=-1)
        b_bits = tl.load(p_row + 1 + i_t // 32, mask=m_r, other=0)
        m_ancestor = ((b_bits[:, None] >> (shift + o_t)[None, :]) & 1) != 0
        m_self = m_ancestor | (o_t[:, None] == o_t[None, :])

        # The sums of the logs of decays, from the state to each row: that of the nearest row of an earlier
        # block, and what follows it in this one.
        p_entry = p_sums + entry.to(tl.int64) * s_sums
        p_sum = p_sums + o_r * s_sums
        if not CHANNELS:
            b_g = tl.load(p_g + o_r * s_gt, mask=m_r, other=0.0)
            b_g = tl.where(m_r, log2_decay(b_g, b_rate, b_bias, lower, GATE), 0.0)
            b_whole = tl.floor(b_g * (1 / UNIT))
            b_hi = tl.load(p_entry, mask=entry >= 0, other=0)
            b_lo = tl.load(p_entry + 1, mask=entry >= 0, other=0).to(tl.float32, bitcast=True)
            b_hi += tl.sum(tl.where(m_self, b_whole.to(tl.int32)[None, :], 0), 1)
            b_lo += tl.sum(tl.where(m_self, (b_g - b_whole * UNIT)[None, :], 0.0), 1)
            tl.store(p_sum, b_hi, mask=m_r)
            tl.store(p_sum + 1, b_lo.to(tl.int32, bitcast=True), mask=m_r)

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
            b_s = tl.load(p_state + o_k[None, :], mask=m_state & (o_k < K)[None, :], other=0.0).to(tl.float32)
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
                b_bias = 0.0
                if BIAS:
                    b_bias = tl.load(p_bias + o_k, mask=o_k < K, other=0.0).to(tl.float32)
                m_entry = (entry >= 0)[:, None] & (o_k < K)[None, :]
                b_hi = tl.load(p_entry[:, None] + o_k[None, :], mask=m_entry, other=0)
                b_lo = tl.load(p_entry[:, None] + K + o_k[None, :], mask=m_entry, other=0)
                b_lo = b_lo.to(tl.float32, bitcast=True)
                for j in range(count):
                    b_g = tl.load(p_g + (i_t + j) * s_gt + o_k, mask=o_k < K, other=0.0)
                    b_g = log2_decay(b_g, b_rate, b_bias, lower, GATE)
                    b_whole = tl.floor(b_g * (1 / UNIT))
                    is_on = ((o_t == j) | (((b_bits >> (shift + j)) & 1) != 0))[:, None]
                    b_hi += tl.where(is_on, b_whole.to(tl.int32)[None, :], 0)
                    b_lo += tl.where(is_on, (b_g - b_whole * UNIT)[None, :], 0.0)
                tl.store(p_sum[:, None] + o_k[None, :], b_hi, mask=m_k)
                tl.store(p_sum[:, None] + K + o_k[None, :], b_lo.to(tl.int32, bitcast=True), mask=m_k)
                tl.debug_barrier()  # sums are read again, row by row
                b_a, b_p = _add_pairs(
                    b_a, b_p, b_k, b_q, b_hi, b_lo, p_k + i_t * s_kt, p_sums + i_t * s_sums, m_self, count,
                    o_k, s_kt, s_sums, K,
                )  # fmt: skip
                b_x = _difference(b_hi, b_lo, 0, 0.0)
                b_k *= b_x
                b_q *= b_x
            b_r = tl.dot(b_s, tl.trans(b_k), acc=b_r, input_precision=PRECISION)
            b_o = tl.dot(b_s, tl.trans(b_q), acc=b_o, input_precision=PRECISION)
        if not CHANNELS:
            b_x = _difference(b_hi[:, None], b_lo[:, None], b_hi[None, :], b_lo[None, :])
            b_x = tl.where(m_self, b_x, 0.0)
            b_a *= b_x
            b_p *= b_x
            b_x = _difference(b_hi, b_lo, 0, 0.0)[None, :]
            b_r *= b_x
            b_o *= b_x

        for i_j in range(0, i_t, ROWS):
            b_bits = tl.load(p_row + 1 + i_j // 32, mask=m_r, other=0)
            m_before = ((b_bits[:, None] >> (i_j % 32 + o_t)[None, :]) & 1) != 0
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
            b_u = tl.load(p_writes + (i_j + o_t)[None, :] * (HV * V) + o_v[:, None], mask=m_v, other=0.0)
            b_r = tl.dot(b_u, tl.trans(b_aj), acc=b_r, input_precision=PRECISION)
            b_o = tl.dot(b_u, tl.trans(b_pj), acc=b_o, input_precision=PRECISION)

        if L2NORM:
            b_nk = tl.rsqrt(b_nk + 1e-6)
            b_nq = tl.rsqrt(b_nq + 1e-6) * scale
        else:
            b_nk = tl.full((ROWS,), 1.0, tl.float32)
            b_nq = tl.full((ROWS,), 1.0, tl.float32) * scale
        b_w = b_beta * b_nk
        b_a = tl.where(m_ancestor, b_a * (b_w * b_nk)[:, None], 0.0)
        b_a = tl.reshape(invert_16(tl.reshape(b_a, (1, ROWS, ROWS)), True), (ROWS, ROWS))
        b_v = tl.load(p_v + o_r[None, :] * s_vt + o_v[:, None], mask=m_r[None, :] & m_v, other=0.0)
        b_r = (b_v.to(tl.float32) - b_r * b_nk[None, :]) * b_w[None, :]
        b_u = tl.dot(b_r, tl.trans(b_a), input_precision=PRECISION)
        b_p = tl.where(m_self, b_p, 0.0)
        b_o = tl.dot(b_u, tl.trans(b_p), acc=b_o, input_precision=PRECISION) * b_nq[None, :]
        o_at = o_r[None, :] * (HV * V) + o_v[:, None]
        tl.store(p_writes + o_at, b_u, mask=m_r[None, :] & m_v)
        tl.store(p_out + o_at, b_o.to(p_out.dtype.element_ty), mask=m_r[None, :] & m_v)
        tl.debug_barrier()  # what was written is read by later blocks


@triton.jit
def _commit(
    p_accepted,
    p_state,
    p_table,
    p_keys,
    p_writes,
    p_sums,
    p_cu_seqlens,
    p_read_slots,
    p_write_slots,
    p_has_initial_state,
    s_slot,
    words,
    HV: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    i_b = tl.program_id(0)
    i_hv = tl.program_id(1)
    i_n = tl.program_id(2)
    row = tl.load(p_cu_seqlens + i_n).to(tl.int64)
    rows = tl.load(p_cu_seqlens + i_n + 1) - row
    read = tl.load(p_read_slots + i_n)
    write = tl.load(p_write_slots + i_n)
    has = tl.load(p_has_initial_state + i_n)
    last = tl.minimum(tl.load(p_accepted + i_n), rows - 1)
    if write < 0 or rows == 0:
        return

    PRECISION: tl.constexpr = "ieee" if p_keys.dtype.element_ty == tl.float32 else "tf32x3"
    CHANNEL_COUNT: tl.constexpr = K if CHANNELS else 1
    s_sums: tl.constexpr = HV * 2 * CHANNEL_COUNT
    o_t = tl.arange(0, ROWS)
    o_k = tl.arange(0, BK)
    o_v = i_b * BV + tl.arange(0, BV)
    m_k = (o_k < K)[None, :]
    m_v = (o_v < V)[:, None]
    o_state = (i_hv * V + o_v)[:, None] * K + o_k[None, :]
    m_read = (o_v < tl.where(has, V, 0))[:, None] & m_k
    b_s = tl.load(p_state + read * s_slot + o_state, mask=m_read, other=0.0).to(tl.float32)
    p_keys += (row * (HV // GROUP) + i_hv // GROUP) * K
    p_writes += (row * HV + i_hv) * V
    p_sums += (row * HV + i_hv) * (2 * CHANNEL_COUNT)
    if last >= 0:
        p_bits = p_table + (row + last) * (1 + words) + 1
        o_sum = o_k if CHANNELS else tl.zeros((1,), tl.int32)
        m_sum = o_sum < K
        b_hi = tl.load(p_sums + last * s_sums + o_sum, mask=m_sum, other=0)[None, :]
        b_lo = tl.load(p_sums + last * s_sums + CHANNEL_COUNT + o_sum, mask=m_sum, other=0)[None, :]
        b_lo = b_lo.to(tl.float32, bitcast=True)
        b_s *= _difference(b_hi, b_lo, 0, 0.0)
        for i_t in range(0, last + 1, ROWS):
            o_r = i_t + o_t
            bits = tl.load(p_bits + i_t // 32)
            is_on = ((o_r == last) | ((o_r < last) & (((bits >> (i_t % 32 + o_t)) & 1) != 0)))[:, None]
            o_r = o_r[:, None]
            b_k = tl.load(p_keys + o_r * (HV // GROUP * K) + o_k[None, :], mask=is_on & m_k, other=0.0)
            b_u = tl.load(
                p_writes + tl.trans(o_r) * (HV * V) + o_v[:, None], mask=tl.trans(is_on) & m_v, other=0.0
            )
            p_sum = p_sums + o_r * s_sums + o_sum[None, :]
            b_hi_r = tl.load(p_sum, mask=is_on & m_sum[None, :], other=0)
            b_lo_r = tl.load(p_sum + CHANNEL_COUNT, mask=is_on & m_sum[None, :], other=0)
            b_x = tl.where(is_on, _difference(b_hi, b_lo, b_hi_r, b_lo_r.to(tl.float32, bitcast=True)), 0.0)
            b_s = tl.dot(b_u, b_k.to(tl.float32) * b_x, acc=b_s, input_precision=PRECISION)
    tl.store(p_state + write * s_slot + o_state, b_s.to(p_state.dtype.element_ty), mask=m_v & m_k)


_launch_verify = Launcher(_verify)
_launch_commit = Launcher(_commit)


def verify(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    gates: Gates,
    state: torch.Tensor,
    out: torch.Tensor,
    batch: VerifyBatch,
    plan: Drafts,
    scale: float,
    qk_l2norm: bool,
    channels: bool,
) -> Record:
    """Runs drafted rows, as `gated_delta` and, with `channels`, `kda` have them."""
    total, heads, key_size = k.shape
    _, value_heads, value_size = v.shape
    keys = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    writes = torch.empty(v.shape, dtype=torch.float32, device=k.device)
    channel_count = key_size if channels else 1
    sums = torch.empty((total, value_heads, 2, channel_count), dtype=torch.int32, device=k.device)
    if total:
        block_v = min(padded(value_size, 16), 32)
        stages = 1 if channels else 3
        slots = (batch.cu_seqlens, batch.read_slots, batch.has_initial_state)
        strides = (*q.stride()[:2], *k.stride()[:2], *v.stride()[:2])
        strides = (*strides, *gates.g.stride()[:2], *gates.beta.stride(), state.stride(0))
        sizes = (value_heads, value_heads // heads, key_size, value_size, padded(key_size, 16), block_v)
        _launch_verify(
            (-(-value_size // block_v), value_heads, len(batch.seqlens)),
            (q, k, v, *gates.tensors, state, out, plan.table, keys, writes, sums, *slots),
            (scale, *gates.numbers, *strides, plan.table.shape[1] - 1),
            (*sizes, qk_l2norm, channels, q.dtype == torch.float32, stages, *gates.constants),
            num_warps=4,
            **launch_options(q.dtype),
        )
    return Record(keys, writes, sums)


def commit(
    record: Record,
    accepted: torch.Tensor,
    *,
    state: torch.Tensor,
    batch: VerifyBatch,
    plan: Drafts,
) -> None:
    """Writes the state after each sequence's last accepted row."""
    total, heads, key_size = record.keys.shape
    _, value_heads, value_size = record.writes.shape
    if total == 0:
        return
    block_v = min(padded(value_size, 16), 32)
    slots = (batch.cu_seqlens, batch.read_slots, batch.write_slots, batch.has_initial_state)
    sizes = (value_heads, value_heads // heads, key_size, value_size, padded(key_size, 16), block_v)
    _launch_commit(
        (-(-value_size // block_v), value_heads, len(batch.seqlens)),
        (accepted, state, plan.table, record.keys, record.writes, record.sums, *slots),
        (state.stride(0), plan.table.shape[1] - 1),
        (*sizes, record.sums.shape[-1] > 1),
        num_warps=2,
    )


__all__ = ["Drafts", "Record", "commit", "verify"]
