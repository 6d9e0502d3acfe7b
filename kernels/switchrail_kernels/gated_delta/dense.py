"""Between the tensors of the contract and a library's: dense, normalised, with states of the batch's own."""

# Triton reads the types of a kernel's arguments at the call.
# ruff: noqa: ANN001, ANN202, SIM102
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from switchrail.ops.batch import StateBatch

from switchrail_kernels.delta.gates import Gates, log2_decay, write_weight
from switchrail_kernels.launch import Launcher, padded

LEAST_LOG_DECAY = -80.0
"""What a g below it counts as, so that differences of sums of them are numbers."""

_ROWS = 32
_BLOCK = 4096


@triton.jit
def _copy_rows(
    p_from, p_to, o_t, rows, s_t, i_h, s_h, heads, D: tl.constexpr, BD: tl.constexpr, NORM: tl.constexpr
):
    """Rows of one head, each multiplied by rsqrt(sum of squares + 1e-6) where `NORM`."""
    o_d = tl.arange(0, BD)
    m = (o_t < rows)[:, None] & (o_d < D)[None, :]
    b = tl.load(p_from + (o_t * s_t + i_h * s_h)[:, None] + o_d[None, :], mask=m, other=0.0)
    if NORM:
        b_x = b.to(tl.float32)
        b = b_x * tl.rsqrt(tl.sum(b_x * b_x, 1) + 1e-6)[:, None]
    tl.store(p_to + ((o_t * heads + i_h) * D)[:, None] + o_d[None, :], b, mask=m)


@triton.jit
def _pack(
    p_q,
    p_k,
    p_v,
    p_g,
    p_beta,
    p_rate,
    p_bias,
    p_to_q,
    p_to_k,
    p_to_v,
    p_to_g,
    p_to_beta,
    rows,
    lower,
    beta_scale,
    least,
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
    H: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    L2NORM: tl.constexpr,
    GATE: tl.constexpr,
    BIASED: tl.constexpr,
    RAW_BETA: tl.constexpr,
    ROWS: tl.constexpr,
):
    # Heads innermost: programs that run together read whole rows.
    i_h = tl.program_id(0) % (2 * H + HV)
    o_t = (tl.program_id(0) // (2 * H + HV)).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    if i_h < H:
        _copy_rows(p_q, p_to_q, o_t, rows, s_qt, i_h, s_qh, H, K, BK, L2NORM)
    elif i_h < 2 * H:
        _copy_rows(p_k, p_to_k, o_t, rows, s_kt, i_h - H, s_kh, H, K, BK, L2NORM)
    else:
        i_h -= 2 * H
        _copy_rows(p_v, p_to_v, o_t, rows, s_vt, i_h, s_vh, HV, V, BV, False)
        m = o_t < rows
        b_rate = 0.0
        b_bias = 0.0
        if GATE != 0:
            b_rate = tl.exp(tl.load(p_rate + i_h))
        if BIASED:
            b_bias = tl.load(p_bias + i_h).to(tl.float32)
        b_g = tl.load(p_g + o_t * s_gt + i_h * s_gh, mask=m, other=0.0)
        b_g = log2_decay(b_g, b_rate, b_bias, lower, GATE) * 0.6931471805599453
        tl.store(p_to_g + o_t * HV + i_h, tl.maximum(b_g, least), mask=m)
        b_beta = tl.load(p_beta + o_t * s_bt + i_h * s_bh, mask=m, other=0.0)
        tl.store(p_to_beta + o_t * HV + i_h, write_weight(b_beta, beta_scale, RAW_BETA), mask=m)


@triton.jit
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


@triton.jit
def _scatter(
    p_states,
    p_slots,
    p_sequences,
    p_cu_seqlens,
    p_pool,
    p_out,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i_s = tl.program_id(0).to(tl.int64)
    i_n = tl.load(p_sequences + i_s)
    slot = tl.load(p_slots + i_n)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if slot >= 0:
        b = tl.load(p_states + i_s * SIZE + o, mask=o < SIZE)
        tl.store(p_pool + slot * SIZE + o, b.to(p_pool.dtype.element_ty), mask=o < SIZE)
    else:  # padding: its rows are zeros, and it has no state
        first = tl.load(p_cu_seqlens + i_n).to(tl.int64) * WIDTH
        end = tl.load(p_cu_seqlens + i_n + 1).to(tl.int64) * WIDTH
        step = tl.num_programs(1) * BLOCK
        for i in range(first + tl.program_id(1) * BLOCK, end, step):
            o_out = i + tl.arange(0, BLOCK)
            tl.store(p_out + o_out, tl.zeros((BLOCK,), p_out.dtype.element_ty), mask=o_out < end)


_launch_pack = Launcher(_pack)
_launch_gather = Launcher(_gather)
_launch_scatter = Launcher(_scatter)


def pack(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gates: Gates, qk_l2norm: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Dense copies of a prefill's inputs, in one launch.

    Returns:
        q and k [T, H, K], normalised where asked for, and v [T, HV, V], of the dtype that they had; the log
        of the decay, at least `LEAST_LOG_DECAY`, and the weight of the write, [T, HV] float32.
    """
    rows, heads, key_size = q.shape
    value_heads, value_size = v.shape[1:]
    dense_q, dense_k, dense_v = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
    log_decay = q.new_empty((rows, value_heads), dtype=torch.float32)
    weight = torch.empty_like(log_decay)
    strides = (s for t in (q, k, v, gates.g, gates.beta) for s in t.stride()[:2])
    _launch_pack(
        (-(-rows // _ROWS) * (2 * heads + value_heads), 1, 1),
        (q, k, v, *gates.tensors, dense_q, dense_k, dense_v, log_decay, weight),
        (rows, *gates.numbers, LEAST_LOG_DECAY, *strides),
        (
            heads,
            value_heads,
            key_size,
            value_size,
            padded(key_size),
            padded(value_size),
            qk_l2norm,
            *gates.constants,
            _ROWS,
        ),
        num_warps=4,
    )
    return dense_q, dense_k, dense_v, log_decay, weight


def gather(state: torch.Tensor, batch: StateBatch, sequences: torch.Tensor) -> torch.Tensor:
    """The states before the batch, zeros where a sequence has none.

    Args:
        state: The pool, [slots, HV, V, K].
        batch: The batch.
        sequences: [M] int32, the sequences that are wanted.

    Returns:
        [M, HV, V, K] float32.
    """
    count, size = sequences.shape[0], state[0].numel()
    states = torch.empty((count, *state.shape[1:]), dtype=torch.float32, device=state.device)
    _launch_gather(
        (count, -(-size // _BLOCK), 1),
        (state, batch.read_slots, batch.has_initial_state, sequences, states),
        (),
        (size, _BLOCK),
        num_warps=8,
    )
    return states


def scatter(
    states: torch.Tensor, state: torch.Tensor, out: torch.Tensor, batch: StateBatch, sequences: torch.Tensor
) -> None:
    """Writes the states after the batch into their slots, and zeros into padding's rows of `out`.

    Args:
        states: [M, HV, V, K] float32.
        state: The pool.
        out: [T, HV, V].
        batch: The batch.
        sequences: [M] int32, which sequences they are of.
    """
    size = state[0].numel()
    _launch_scatter(
        (sequences.shape[0], -(-size // _BLOCK), 1),
        (states, batch.write_slots, sequences, batch.cu_seqlens, state, out),
        (),
        (size, out[0].numel(), _BLOCK),
        num_warps=8,
    )


__all__ = ["LEAST_LOG_DECAY", "gather", "pack", "scatter"]
