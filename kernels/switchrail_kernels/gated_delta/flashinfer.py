"""FlashInfer's kernels of the gated delta rule as a backend."""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from flashinfer import chunk_gated_delta_rule
from flashinfer.gdn_decode import gated_delta_rule_decode_pretranspose
from switchrail.ops.batch import Bounds, Phase, StateBatch
from switchrail.ops.delta_call import DeltaCall
from switchrail.ops.gated_delta.contract import CONTRACT, GatedDeltaBackend

from switchrail_kernels.alignment import check_pool, is_aligned
from switchrail_kernels.constants import LN2
from switchrail_kernels.delta.adapter import DeltaAdapter
from switchrail_kernels.delta.call import gate_constants, gate_numbers, gate_tensors, outer_strides
from switchrail_kernels.delta.gates import head_log2_decay, write_weight
from switchrail_kernels.gated_delta.dense import gather, pack, rescale, scales, scatter
from switchrail_kernels.launch import TABLES, Launcher, padded
from switchrail_kernels.tables import to_device


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=TABLES)
def _stage(
    p_q, p_k, p_v, p_g, p_beta, p_rate, p_bias, p_read_slots, p_write_slots, p_to_q, p_to_k, p_to_v,
    p_to_a, p_to_b, p_zeros, p_factors, p_to_read, p_to_write,
    rows, lower, beta_scale,
    s_qt, s_qh, s_kt, s_kh, s_vt, s_vh, s_gt, s_gh, s_bt, s_bh,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, L2NORM: tl.constexpr,
    GATE: tl.constexpr, BIASED: tl.constexpr, RAW_BETA: tl.constexpr, OWN: tl.constexpr,
):  # fmt: skip
    """Converts one row of one value head. Rows from `rows` on get no slot. With OWN, row t uses slot t.

    Gates are converted to raw `softplus` gates that activate to the same values. The library's write weight
    is a sigmoid, so at most 1. With n the factor that normalises k, and any c, the key c k, the value v c / n
    and the weight b (n / c)^2 have the same effect as the key n k, the value v and the weight b. c is a power
    of 2, so keys keep their digits. Queries are also scaled by powers of 2 only. `_finish` applies the rest
    of their norms to the output.
    """
    i_t = (tl.program_id(0) // HV).to(tl.int64)
    i_h = tl.program_id(0) % HV
    o_v = tl.arange(0, V)
    tl.store(p_zeros + i_h, 0.0)
    if i_t < rows:
        i_hk = i_h // (HV // H)
        o_k = tl.arange(0, K)[None, :]
        b_q = tl.load(p_q + i_t * s_qt + i_hk * s_qh + o_k).to(tl.float32)
        b_k = tl.load(p_k + i_t * s_kt + i_hk * s_kh + o_k).to(tl.float32)
        b_inverse = 0.5
        if L2NORM:
            b_power, b_factor = scales(b_q)
            b_q *= b_power[:, None]
            tl.store(p_factors + i_t * H + i_hk, tl.sum(b_factor, 0))
            b_power, b_left = scales(b_k)
            b_k *= 4.0 * b_power[:, None]
            b_inverse = 0.25 * tl.sum(b_left, 0)
        else:
            b_k *= 2.0
        o_to_k = (i_t * H + i_hk) * K + o_k
        tl.store(p_to_q + o_to_k, b_q)
        tl.store(p_to_k + o_to_k, b_k)
        b_v = tl.load(p_v + i_t * s_vt + i_h * s_vh + o_v).to(tl.float32)
        tl.store(p_to_v + (i_t * HV + i_h) * V + o_v, b_v / b_inverse)
        b_g = tl.load(p_g + i_t * s_gt + i_h * s_gh)
        b_x = -LN2 * head_log2_decay(b_g, p_rate, p_bias, i_h, lower, GATE, BIASED)
        # Solve softplus(a) = x: a is log(e^x - 1). Where e^x - 1 would lose digits, a is log(x) plus a series
        # of log((e^x - 1) / x).
        b_a = tl.where(b_x < 0.05, tl.log(b_x) + b_x * (0.5 + b_x * (1 / 24)), tl.log(tl.exp(b_x) - 1.0))
        tl.store(p_to_a + i_t * HV + i_h, tl.where(b_x > 15.0, b_x, b_a))
        b_beta = tl.load(p_beta + i_t * s_bt + i_h * s_bh)
        b_beta = write_weight(b_beta, beta_scale, RAW_BETA) * b_inverse * b_inverse
        tl.store(p_to_b + i_t * HV + i_h, tl.log(b_beta / (1.0 - b_beta)))
    if i_h == 0:
        read = tl.full((), -1, tl.int64)
        write = read
        if i_t < rows:
            read = tl.load(p_read_slots + i_t)
            write = tl.load(p_write_slots + i_t)
            if OWN:
                read = tl.where(read < 0, read, i_t)
                write = read
        tl.store(p_to_read + i_t, read.to(tl.int32))
        tl.store(p_to_write + i_t, write.to(tl.int32))


@triton.jit(do_not_specialize_on_alignment=TABLES)
def _finish(
    p_result, p_factors, p_slots, p_out,
    H: tl.constexpr, HV: tl.constexpr, V: tl.constexpr, L2NORM: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    i_t = i // HV
    o = i * V + tl.arange(0, V)
    b = tl.load(p_result + o).to(tl.float32)
    if L2NORM:
        b *= tl.load(p_factors + i_t * H + i % HV // (HV // H))
        b = tl.where(tl.load(p_slots + i_t) < 0, 0.0, b)  # queries of padding rows may be NaN
    tl.store(p_out + o, b.to(p_out.dtype.element_ty))


MOST = 4.0
"""The largest write weight that `_stage` can convert to a sigmoid."""

_launch_stage = Launcher(_stage)
_launch_finish = Launcher(_finish)


@dataclass(frozen=True, slots=True)
class _Sequences:
    """The nonempty sequences of a batch. The library does not support empty ones.

    Attributes:
        phase: The phase of the batch.
        seqlens: The lengths of all sequences of the batch.
        indices: [M] int32, the indices of the nonempty sequences.
        starts: [M + 1] int64, the first row of each of these sequences, and the number of all rows.
    """

    phase: Phase
    seqlens: tuple[int, ...]
    indices: torch.Tensor
    starts: torch.Tensor

    @classmethod
    def of(cls, phase: Phase, batch: StateBatch) -> _Sequences:
        lengths = np.asarray(batch.seqlens, dtype=np.int64)
        present = np.flatnonzero(lengths)
        starts = np.concatenate([[0], lengths[present].cumsum()]).astype(np.int64)
        tables = (to_device(table, batch.cu_seqlens.device) for table in (present.astype(np.int32), starts))
        return cls(phase, batch.seqlens, *tables)


class FlashInferGatedDelta(DeltaAdapter, GatedDeltaBackend):
    """The gated delta rule for compute capability 9.0, head sizes of 128, bfloat16.

    The library compiles decode for each number of sequences, so this number is padded to the next power of 2.
    bfloat16 states are converted to float32 in scratch memory, and back.
    """

    contract = CONTRACT
    planned = _Sequences

    def plan(self, phase: Phase, batch: StateBatch, bounds: Bounds | None = None) -> _Sequences:
        """Find the nonempty sequences."""
        CONTRACT.check_batch(phase, batch)
        return _Sequences.of(phase, batch)

    def launch(self, call: DeltaCall, batch: StateBatch, plan: _Sequences) -> None:
        """Run T packed tokens of N sequences of any length, or one each in decode."""
        if plan.phase == "decode":
            _decode(call, batch, plan)
        else:
            _prefill(call, batch, plan)


def _prefill(call: DeltaCall, batch: StateBatch, plan: _Sequences) -> None:
    out = call.out
    dense = pack(call, linear=True)
    states = gather(call.layer.state, batch, plan.indices)
    final = torch.empty_like(states)
    result = out if is_aligned(out) else torch.empty_like(out)
    chunk_gated_delta_rule(
        dense.q,
        dense.k,
        dense.v,
        dense.g,
        dense.beta,
        call.layer.scale,
        states,
        output_final_state=True,
        cu_seqlens=plan.starts,
        output=result,
        output_state=final,
    )
    if dense.factors is not None:
        rescale(result, dense.factors)
    if result is not out:
        out.copy_(result)
    scatter(final, call, batch, plan.indices)


def _decode(call: DeltaCall, batch: StateBatch, plan: _Sequences) -> None:
    state, weight = call.layer.state, call.layer.beta_scale
    if weight is not None and weight > MOST:
        raise CONTRACT.error("beta_scale", f"{weight}", f"at most {MOST} for this backend")
    if state.dtype == torch.float32:
        check_pool(CONTRACT, "state", state)
        _step(call, batch, state)
    else:
        pool = gather(state, batch, plan.indices, padded(len(call.q)))
        _step(call, batch, pool)
        scatter(pool, call, batch, plan.indices)


def _step(call: DeltaCall, batch: StateBatch, pool: torch.Tensor) -> None:
    """Run a decode on float32 states, which are the layer's pool or copies in the batch's order."""
    layer, q, k, v, g, beta, out = call
    rows, heads, key_size = q.shape
    value_heads, value_size = out.shape[1:]
    filled = padded(rows)
    direct = rows == filled and not layer.qk_l2norm and is_aligned(out)
    result = out if direct else out.new_empty((filled, value_heads, value_size))
    queries = q.new_empty((filled, 1, heads, key_size))
    keys = torch.empty_like(queries)
    values = q.new_empty((filled, 1, value_heads, value_size))
    a = q.new_empty((filled, 1, value_heads), dtype=torch.float32)
    b = torch.empty_like(a)
    zeros = a.new_empty(value_heads)
    factors = a.new_empty((filled, heads))
    read = batch.read_slots.new_empty(filled, dtype=torch.int32)
    write = torch.empty_like(read)
    sizes = (heads, value_heads, key_size, value_size)
    _launch_stage(
        (filled * value_heads, 1, 1),
        (
            *(q, k, v, *gate_tensors(call), batch.read_slots, batch.write_slots),
            *(queries, keys, values, a, b, zeros, factors, read, write),
        ),
        (rows, *gate_numbers(layer), *outer_strides(q, k, v, g, beta)),
        (*sizes, layer.qk_l2norm, *gate_constants(layer), pool is not layer.state),
        num_warps=1,
    )
    gated_delta_rule_decode_pretranspose(
        queries,
        keys,
        values,
        None,
        zeros,
        a,
        zeros,
        b,
        layer.scale,
        result.view(filled, 1, value_heads, value_size),
        use_qk_l2norm=False,
        initial_state=pool,
        initial_state_indices=read,
        output_state_indices=write,
    )
    if not direct:
        _launch_finish(
            (rows * value_heads, 1, 1),
            (result, factors, read, out),
            (),
            (heads, value_heads, value_size, layer.qk_l2norm),
            num_warps=1,
        )
