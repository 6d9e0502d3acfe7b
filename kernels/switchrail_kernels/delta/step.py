"""Decode: one token per sequence."""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from switchrail.ops.batch import StateBatch
from switchrail.ops.delta_call import DeltaCall

from switchrail_kernels.alignment import is_transposed
from switchrail_kernels.delta.call import gate_constants, gate_numbers, gate_tensors, outer_strides
from switchrail_kernels.delta.gates import log2_decay, write_weight
from switchrail_kernels.dependent import wait
from switchrail_kernels.launch import TABLES, Launcher, padded


@triton.jit(do_not_specialize_on_alignment=TABLES)
def _step(
    p_q, p_k, p_v, p_g, p_beta, p_rate, p_bias, p_state, p_out, p_read_slots, p_write_slots,
    scale, lower, beta_scale,
    s_qt, s_qh, s_kt, s_kh, s_vt, s_vh, s_gt, s_gh, s_bt, s_bh, s_slot,
    HV,
    GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    L2NORM: tl.constexpr, CHANNELS: tl.constexpr, GATE: tl.constexpr, BIAS: tl.constexpr,
    RAW_BETA: tl.constexpr, KV: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    i_v = tl.program_id(0)
    i_hv = tl.program_id(1)
    i_n = tl.program_id(2).to(tl.int64)
    i_h = i_hv // GROUP
    o_k = tl.arange(0, BK)
    o_v = i_v * BV + tl.arange(0, BV)
    m_k = o_k < K
    m_v = o_v < V

    wait(EARLY)
    # Loads are issued in program order, and arithmetic before a load delays that load. So all loads come
    # first. The load of the state needs the slot, so it is the last of them.
    read = tl.load(p_read_slots + i_n)
    write = tl.load(p_write_slots + i_n)
    b_q = tl.load(p_q + i_n * s_qt + i_h * s_qh + o_k, mask=m_k, other=0.0)
    b_k = tl.load(p_k + i_n * s_kt + i_h * s_kh + o_k, mask=m_k, other=0.0)
    p_g += i_n * s_gt + i_hv * s_gh
    b_g = tl.load(p_g + o_k, mask=m_k, other=0.0) if CHANNELS else tl.load(p_g)
    b_rate = tl.load(p_rate + i_hv).to(tl.float32) if GATE != 0 else 0.0
    b_bias = 0.0
    if BIAS:
        p_bias += i_hv * K if CHANNELS else i_hv
        b_bias = (tl.load(p_bias + o_k, mask=m_k, other=0.0) if CHANNELS else tl.load(p_bias)).to(tl.float32)
    b_beta = tl.load(p_beta + i_n * s_bt + i_hv * s_bh)
    b_v = tl.load(p_v + i_n * s_vt + i_hv * s_vh + o_v, mask=m_v, other=0.0)
    p_state += i_hv * V * K
    o_state = o_v[:, None] + (o_k * V)[None, :] if KV else (o_v * K)[:, None] + o_k[None, :]
    m_read = (o_v < tl.where(read >= 0, V, 0))[:, None] & m_k[None, :]
    b_s = tl.load(p_state + read * s_slot + o_state, mask=m_read, other=0.0).to(tl.float32)

    b_q = b_q.to(tl.float32)
    b_k = b_k.to(tl.float32)
    b_v = b_v.to(tl.float32)
    b_g = tl.exp2(log2_decay(b_g, tl.exp(b_rate) if GATE != 0 else 0.0, b_bias, lower, GATE))
    b_beta = write_weight(b_beta, beta_scale, RAW_BETA)
    norm_k = 1.0
    norm_q = scale
    if L2NORM:
        norm_k = tl.rsqrt(tl.sum(b_k * b_k, 0) + 1e-6)
        norm_q = scale * tl.rsqrt(tl.sum(b_q * b_q, 0) + 1e-6)
    b_kq = norm_k * tl.sum(b_k * b_q, 0)

    # With the decayed old state S, the new state is S + u k^T, and its product with q is S q + u (k . q). So
    # S k and S q can be computed at the same time. Factors per head multiply the sums, not each term.
    if CHANNELS:
        b_s *= b_g[None, :]
    b_sk = tl.sum(b_s * b_k[None, :], 1)
    b_sq = tl.sum(b_s * b_q[None, :], 1)
    if not CHANNELS:
        b_sk *= b_g
        b_sq *= b_g
        b_s *= b_g
    b_u = b_beta * (b_v - norm_k * b_sk)
    b_o = norm_q * (b_sq + b_u * b_kq)
    b_o = tl.where(write >= 0, b_o, 0.0)
    tl.store(p_out + (i_n * HV + i_hv) * V + o_v, b_o.to(p_out.dtype.element_ty), mask=m_v)
    b_s += (b_u * norm_k)[:, None] * b_k[None, :]
    m_write = (o_v < tl.where(write >= 0, V, 0))[:, None] & m_k[None, :]
    # Let the cache evict the state first: all other layers' states are read before this one is needed again.
    b_s = b_s.to(p_state.dtype.element_ty)
    tl.store(p_state + write * s_slot + o_state, b_s, mask=m_write, cache_modifier=".cs")


_launch_step = Launcher(_step, early=True)


def step(call: DeltaCall, batch: StateBatch, *, channels: bool) -> None:
    """Run one token per sequence, for `gated_delta` or (with `channels`) for `kda`."""
    layer, q, k, v, g, beta, out = call
    sequences, heads, key_size = q.shape
    _, value_heads, value_size = v.shape
    block_v = min(4 if sequences == 1 else 8, padded(value_size))
    strides = (*outer_strides(q, k, v, g, beta), layer.state.stride(0))
    sizes = (value_heads // heads, key_size, value_size, padded(key_size), block_v)
    _launch_step(
        (-(-value_size // block_v), value_heads, sequences),
        (q, k, v, *gate_tensors(call), layer.state, out, batch.read_slots, batch.write_slots),
        (layer.scale, *gate_numbers(layer), *strides, value_heads),
        (*sizes, layer.qk_l2norm, channels, *gate_constants(layer), is_transposed(layer.state)),
        num_warps=1,
    )
