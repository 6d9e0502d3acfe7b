"""Decode: one token a sequence."""

# Triton reads the types of a kernel's arguments at the call.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from switchrail.ops.batch import StateBatch

from switchrail_kernels.delta.gates import Gates, log2_decay, write_weight
from switchrail_kernels.launch import Launcher, padded


@triton.jit
def _step(
    p_q,
    p_k,
    p_v,
    p_g,
    p_beta,
    p_rate,
    p_bias,
    p_state,
    p_out,
    p_read_slots,
    p_write_slots,
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
    HV,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    L2NORM: tl.constexpr,
    CHANNELS: tl.constexpr,
    GATE: tl.constexpr,
    BIAS: tl.constexpr,
    RAW_BETA: tl.constexpr,
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
    p_g += i_n * s_gt + i_hv * s_gh
    o_g = o_k if CHANNELS else o_k * 0
    b_rate = 0.0
    b_bias = 0.0
    if GATE != 0:
        b_rate = tl.exp(tl.load(p_rate + i_hv))
    if BIAS:
        p_bias += i_hv * K if CHANNELS else i_hv
        b_bias = tl.load(p_bias + o_g, mask=m_k, other=0.0).to(tl.float32)
    b_g = tl.exp2(log2_decay(tl.load(p_g + o_g, mask=m_k, other=0.0), b_rate, b_bias, lower, GATE))
    b_beta = write_weight(tl.load(p_beta + i_n * s_bt + i_hv * s_bh), beta_scale, RAW_BETA)
    if L2NORM:
        b_k *= tl.rsqrt(tl.sum(b_k * b_k, 0) + 1e-6)
        b_q *= tl.rsqrt(tl.sum(b_q * b_q, 0) + 1e-6)
    b_q *= scale

    # Both readouts are of the old state, so that neither waits for the other: S' q = S exp(g) q + u (k . q).
    b_u = b_beta * (b_v - tl.sum(b_s * (b_k * b_g)[None, :], 1))
    b_o = tl.sum(b_s * (b_q * b_g)[None, :], 1) + b_u * tl.sum(b_k * b_q, 0)
    b_o = tl.where(write >= 0, b_o, 0.0)
    tl.store(p_out + (i_n * HV + i_hv) * V + o_v, b_o.to(p_out.dtype.element_ty), mask=m_v)
    b_s = b_s * b_g[None, :] + b_u[:, None] * b_k[None, :]
    tl.store(p_state + write * s_slot + o_state, b_s.to(p_state.dtype.element_ty), mask=m_write)


_launch_step = Launcher(_step)


def step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    gates: Gates,
    state: torch.Tensor,
    out: torch.Tensor,
    batch: StateBatch,
    scale: float,
    qk_l2norm: bool,
    channels: bool,
) -> None:
    """One token a sequence, as `gated_delta` and, with `channels`, `kda` have it."""
    sequences, heads, key_size = q.shape
    _, value_heads, value_size = v.shape
    if sequences == 0:
        return
    block_v = min(4 if sequences == 1 else 8, padded(value_size))
    sizes = (value_heads // heads, key_size, value_size, padded(key_size), block_v)
    _launch_step(
        (-(-value_size // block_v), value_heads, sequences),
        (q, k, v, *gates.tensors, state, out, batch.read_slots, batch.write_slots),
        (
            scale,
            *gates.numbers,
            *q.stride()[:2],
            *k.stride()[:2],
            *v.stride()[:2],
            *gates.g.stride()[:2],
            *gates.beta.stride(),
            state.stride(0),
            value_heads,
        ),
        (*sizes, qk_l2norm, channels, *gates.constants),
        num_warps=1,
    )


__all__ = ["step"]
