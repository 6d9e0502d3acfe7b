"""Converts the contract's tensors to the form that kernel libraries take, and back.

The libraries take contiguous inputs, and a tensor with the states of the batch instead of a pool.
"""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN201, ANN202, SIM102
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from switchrail.ops.batch import StateBatch
from switchrail.ops.delta_call import DeltaCall

from switchrail_kernels.constants import LN2
from switchrail_kernels.delta.call import gate_constants, gate_numbers, gate_tensors, outer_strides
from switchrail_kernels.delta.gates import head_log2_decay, write_weight
from switchrail_kernels.launch import TABLES, Launcher, padded

LEAST_LOG_DECAY = -80.0
"""Lower log decays are raised to this number, so that differences of sums of gates are finite."""

_ROWS = 32
_BLOCK = 4096


@triton.jit
def scales(b_x):
    """A power of 2 and a factor for each row of [R, D].

    Multiplied by the power, the row has a norm between 1/2 and 1. The factor is 1 / this norm.
    """
    b_x = b_x.to(tl.float32)
    b_norm = tl.rsqrt(tl.sum(b_x * b_x, 1) + 1e-6)
    b_power = tl.exp2(tl.floor(tl.log2(b_norm)))
    return b_power, b_norm / b_power


@triton.jit
def _finite(b_x):
    """Rows [R, D] with zeros in place of NaN and infinity, and whether each row was finite."""
    m = tl.abs(b_x.to(tl.float32)) < float("inf")
    return tl.where(m, b_x, 0.0), tl.min(m.to(tl.int32), 1) != 0


@triton.jit
def _pack(
    p_q, p_k, p_v, p_g, p_beta, p_rate, p_bias, p_to_q, p_to_k, p_to_v, p_to_g, p_to_beta, p_factors,
    rows, lower, beta_scale, least,
    s_qt, s_qh, s_kt, s_kh, s_vt, s_vh, s_gt, s_gh, s_bt, s_bh,
    H: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr,
    BV: tl.constexpr, L2NORM: tl.constexpr, GATE: tl.constexpr, BIASED: tl.constexpr, RAW_BETA: tl.constexpr,
    LINEAR: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    # Heads are the innermost axis of the grid, so that concurrent programs read whole rows.
    i_h = tl.program_id(0) % H
    o_t = (tl.program_id(0) // H).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    o_k = tl.arange(0, BK)[None, :]
    o_v = tl.arange(0, BV)[None, :]
    m_t = o_t < rows
    m_k = m_t[:, None] & (o_k < K)
    m_v = m_t[:, None] & (o_v < V)
    o_to_k = ((o_t * H + i_h) * K)[:, None] + o_k
    b_q = tl.load(p_q + (o_t * s_qt + i_h * s_qh)[:, None] + o_k, mask=m_k, other=0.0)
    b_k = tl.load(p_k + (o_t * s_kt + i_h * s_kh)[:, None] + o_k, mask=m_k, other=0.0)
    b_k, m_key = _finite(b_k)
    b_inverse = tl.full((ROWS,), 1.0, tl.float32)
    if L2NORM:
        b_power, b_inverse = scales(b_q)
        b_q = b_q.to(tl.float32) * b_power[:, None]
        tl.store(p_factors + o_t * H + i_h, b_inverse, mask=m_t)
        b_power, b_inverse = scales(b_k)
        b_k = b_k.to(tl.float32) * b_power[:, None]
    tl.store(p_to_q + o_to_k, b_q, mask=m_k)
    tl.store(p_to_k + o_to_k, b_k, mask=m_k)
    for i_r in range(GROUP):
        i_hv = i_h * GROUP + i_r
        o_to_v = o_t * (H * GROUP) + i_hv
        b_v = tl.load(p_v + (o_t * s_vt + i_hv * s_vh)[:, None] + o_v, mask=m_v, other=0.0)
        if L2NORM:
            b_v = b_v.to(tl.float32) / b_inverse[:, None]
        b_v, m_value = _finite(b_v)
        tl.store(p_to_v + (o_to_v * V)[:, None] + o_v, b_v, mask=m_v)
        b_g = tl.load(p_g + o_t * s_gt + i_hv * s_gh, mask=m_t, other=0.0)
        b_g = head_log2_decay(b_g, p_rate, p_bias, i_hv, lower, GATE, BIASED) * LN2
        b_g = tl.maximum(b_g, least)
        if LINEAR:
            b_g = tl.exp(b_g)
        tl.store(p_to_g + o_to_v, b_g, mask=m_t)
        b_beta = tl.load(p_beta + o_t * s_bt + i_hv * s_bh, mask=m_t, other=0.0)
        b_beta = write_weight(b_beta, beta_scale, RAW_BETA) * b_inverse * b_inverse
        tl.store(p_to_beta + o_to_v, tl.where(m_key & m_value, b_beta, float("nan")), mask=m_t)


@triton.jit
def _rescale(
    p_out, p_factors, rows,
    HV: tl.constexpr, GROUP: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    i_hv = tl.program_id(0) % HV
    o_t = (tl.program_id(0) // HV).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    o_v = tl.arange(0, BV)[None, :]
    m = (o_t < rows)[:, None] & (o_v < V)
    b_factor = tl.load(p_factors + o_t * (HV // GROUP) + i_hv // GROUP, mask=o_t < rows, other=0.0)
    p_out += ((o_t * HV + i_hv) * V)[:, None] + o_v
    tl.store(p_out, tl.load(p_out, mask=m, other=0.0) * b_factor[:, None], mask=m)


@triton.jit(do_not_specialize_on_alignment=TABLES)
def _gather(p_pool, p_slots, p_started, p_sequences, p_states, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    i_s = tl.program_id(0).to(tl.int64)
    i_n = tl.load(p_sequences + i_s)
    slot = tl.load(p_slots + i_n)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    b = tl.zeros((BLOCK,), tl.float32)
    if slot >= 0:
        if tl.load(p_started + i_n):
            b = tl.load(p_pool + slot * SIZE + o, mask=o < SIZE, other=0.0).to(tl.float32)
    tl.store(p_states + i_s * SIZE + o, b, mask=o < SIZE)


@triton.jit(do_not_specialize_on_alignment=TABLES)
def _scatter(
    p_states, p_slots, p_sequences, p_cu_seqlens, p_pool, p_out,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i_s = tl.program_id(0).to(tl.int64)
    i_n = tl.load(p_sequences + i_s)
    slot = tl.load(p_slots + i_n)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if slot >= 0:
        b = tl.load(p_states + i_s * SIZE + o, mask=o < SIZE)
        tl.store(p_pool + slot * SIZE + o, b.to(p_pool.dtype.element_ty), mask=o < SIZE)
    else:  # padding: its rows of the output are zeros, and it has no state
        first = tl.load(p_cu_seqlens + i_n).to(tl.int64) * WIDTH
        end = tl.load(p_cu_seqlens + i_n + 1).to(tl.int64) * WIDTH
        step = tl.num_programs(1) * BLOCK
        for i in range(first + tl.program_id(1) * BLOCK, end, step):
            o_out = i + tl.arange(0, BLOCK)
            tl.store(p_out + o_out, tl.zeros((BLOCK,), p_out.dtype.element_ty), mask=o_out < end)


_launch_pack = Launcher(_pack)
_launch_rescale = Launcher(_rescale)
_launch_gather = Launcher(_gather)
_launch_scatter = Launcher(_scatter)


class Dense(NamedTuple):
    """The dense inputs of a prefill. Tensors [T, HV] and [T, H] are float32; the others keep their dtypes.

    Attributes:
        q: [T, H, K].
        k: [T, H, K].
        v: [T, HV, V].
        g: [T, HV], the log of the decay, at least `LEAST_LOG_DECAY`; the decay itself with `linear`.
        beta: [T, HV], the write weight for the scaled keys and values.
        factors: [T, H], factors for the rows of `out`; None if the rows are not multiplied.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    factors: torch.Tensor | None


def pack(call: DeltaCall, *, linear: bool = False) -> Dense:
    """Copy a prefill's inputs, in one launch, for kernels without normalisation.

    Rounding normalised keys and queries would lose the product of a nearly orthogonal pair. But with n the
    norm of k, S + beta (v - S k / n) k^T / n equals S + beta / n^2 (v n - S k) k^T. Dividing a query by its
    norm divides its output by the same number. So keys and queries are only scaled by powers of 2, which
    keeps all of their digits. The rest of the norms is applied to values, write weights and outputs.

    A library's kernel may also read rows of the next sequence in a sequence's last block, with weights of
    zero. So all keys and values must be finite: others are replaced by 0, and their rows' write weights by
    NaN.

    If `linear`, `g` is the decay instead of its log.
    """
    layer, q, k, v, g, beta, _ = call
    rows, heads, key_size = q.shape
    value_heads, value_size = v.shape[1:]
    log_decay = q.new_empty((rows, value_heads), dtype=torch.float32)
    factors = q.new_empty((rows, heads), dtype=torch.float32) if layer.qk_l2norm else None
    to_q, to_k, to_v = (tensor.new_empty(tensor.shape) for tensor in (q, k, v))
    dense = Dense(to_q, to_k, to_v, log_decay, torch.empty_like(log_decay), factors)
    sizes = (heads, value_heads // heads, key_size, value_size, padded(key_size), padded(value_size))
    _launch_pack(
        (-(-rows // _ROWS) * heads, 1, 1),
        (q, k, v, *gate_tensors(call), *dense[:-1], log_decay if factors is None else factors),
        (rows, *gate_numbers(layer), LEAST_LOG_DECAY, *outer_strides(q, k, v, g, beta)),
        (*sizes, layer.qk_l2norm, *gate_constants(layer), linear, _ROWS),
        num_warps=4,
    )
    return dense


def rescale(out: torch.Tensor, factors: torch.Tensor) -> None:
    """Multiply each row of `out` [T, HV, V] by the factor of its head in `factors` [T, H]."""
    rows, value_heads, value_size = out.shape
    _launch_rescale(
        (-(-rows // _ROWS) * value_heads, 1, 1),
        (out, factors),
        (rows,),
        (value_heads, value_heads // factors.shape[1], value_size, padded(value_size), _ROWS),
        num_warps=4,
    )


def gather(state: torch.Tensor, batch: StateBatch, sequences: torch.Tensor, least: int = 0) -> torch.Tensor:
    """Copy the states that the sequences start from; zeros for sequences without one.

    Args:
        state: The pool, [slots, HV, V, K].
        batch: The batch.
        sequences: [M] int32, the sequences whose states to copy.
        least: Minimum number of states to allocate memory for.

    Returns:
        [M or more, HV, V, K] float32.
    """
    count, size = sequences.shape[0], state[0].numel()
    states = torch.empty((max(count, least), *state.shape[1:]), dtype=torch.float32, device=state.device)
    _launch_gather(
        (count, -(-size // _BLOCK), 1),
        (state, batch.read_slots, batch.has_initial_state, sequences, states),
        (),
        (size, _BLOCK),
        num_warps=8,
    )
    return states


def scatter(states: torch.Tensor, call: DeltaCall, batch: StateBatch, sequences: torch.Tensor) -> None:
    """Write the sequences' final states to their slots, and zeros to the padding rows of `out`.

    Args:
        states: [M or more, HV, V, K] float32.
        call: The call.
        batch: The batch.
        sequences: [M] int32, the sequences that the states belong to.
    """
    state, out = call.layer.state, call.out
    size = state[0].numel()
    _launch_scatter(
        (sequences.shape[0], -(-size // _BLOCK), 1),
        (states, batch.write_slots, sequences, batch.cu_seqlens, state, out),
        (),
        (size, out[0].numel(), _BLOCK),
        num_warps=8,
    )
