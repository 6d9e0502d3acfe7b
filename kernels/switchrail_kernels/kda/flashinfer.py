"""FlashInfer's decode of Kimi delta attention, in the CuTe DSL, as a backend."""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import triton
import triton.language as tl
from cutlass import cute
from flashinfer import recurrent_kda
from switchrail.ops.batch import StateBatch
from switchrail.ops.delta_call import DeltaCall
from switchrail.ops.kda.contract import CONTRACT, KdaBackend

from switchrail_kernels.alignment import check_pool, is_aligned
from switchrail_kernels.constants import LN2
from switchrail_kernels.delta.adapter import DeltaAdapter
from switchrail_kernels.delta.call import gate_constants, gate_numbers, gate_tensors, outer_strides
from switchrail_kernels.delta.gates import log2_decay, write_weight
from switchrail_kernels.launch import TABLES, Launcher
from switchrail_kernels.plans import Decode

ALIGNMENT = 32
"""Alignment in bytes that the library's kernel requires of tensors."""


@triton.jit(do_not_specialize_on_alignment=TABLES)
def _stage(
    p_q, p_k, p_v, p_g, p_beta, p_rate, p_bias, p_read_slots, p_write_slots, p_state, p_to_q, p_to_k,
    p_to_v, p_to_g, p_to_beta, p_to_slots,
    lower, beta_scale,
    s_qt, s_qh, s_kt, s_kh, s_vt, s_vh, s_gt, s_gh, s_bt, s_bh,
    H: tl.constexpr, HV: tl.constexpr, D: tl.constexpr, GATE: tl.constexpr, BIASED: tl.constexpr,
    RAW_BETA: tl.constexpr,
):  # fmt: skip
    """Copies one row of one value head to dense tensors. If read and write slot differ, copies the state."""
    i_t = (tl.program_id(0) // HV).to(tl.int64)
    i_h = tl.program_id(0) % HV
    i_hk = i_h // (HV // H)
    o = tl.arange(0, D)
    o_k = (i_t * H + i_hk) * D + o
    o_v = (i_t * HV + i_h) * D + o
    tl.store(p_to_q + o_k, tl.load(p_q + i_t * s_qt + i_hk * s_qh + o))
    tl.store(p_to_k + o_k, tl.load(p_k + i_t * s_kt + i_hk * s_kh + o))
    tl.store(p_to_v + o_v, tl.load(p_v + i_t * s_vt + i_h * s_vh + o))
    b_rate = 0.0
    if GATE != 0:
        b_rate = tl.exp(tl.load(p_rate + i_h))
    b_bias = tl.zeros((D,), tl.float32)
    if BIASED:
        b_bias = tl.load(p_bias + i_h * D + o).to(tl.float32)
    b_g = tl.load(p_g + i_t * s_gt + i_h * s_gh + o)
    b_g = log2_decay(b_g, b_rate, b_bias, lower, GATE) * LN2
    tl.store(p_to_g + o_v, b_g.to(p_to_g.dtype.element_ty))
    b_beta = write_weight(tl.load(p_beta + i_t * s_bt + i_h * s_bh), beta_scale, RAW_BETA)
    tl.store(p_to_beta + i_t * HV + i_h, b_beta.to(p_to_beta.dtype.element_ty))
    read = tl.load(p_read_slots + i_t)
    write = tl.load(p_write_slots + i_t)
    if i_h == 0:
        tl.store(p_to_slots + i_t, write.to(tl.int32))
    if read != write:
        o_state = o[:, None] * D + o[None, :] + i_h * (D * D)
        b_state = tl.load(p_state + read * (HV * D * D) + o_state)
        tl.store(p_state + write * (HV * D * D) + o_state, b_state)


_launch_stage = Launcher(_stage)

_lock = threading.Lock()

Pair = tuple[Any, Any]


def _fma_pair(src_a: Pair, src_b: Pair, src_c: Pair) -> Pair:
    """The result of `cute.arch.fma_packed_f32x2`, from two separate products."""
    return src_a[0] * src_b[0] + src_c[0], src_a[1] * src_b[1] + src_c[1]


@contextmanager
def _products_for_hopper() -> Iterator[None]:
    """Within the `with` block, replaces the library's packed products, which only Blackwell supports."""
    with _lock:
        packed = cute.arch.fma_packed_f32x2
        cute.arch.fma_packed_f32x2 = _fma_pair
        try:
            yield
        finally:
            cute.arch.fma_packed_f32x2 = packed


class FlashInferKda(DeltaAdapter, KdaBackend):
    """Decode for compute capability 9.0, head sizes of 64 and 128, bfloat16 inputs and states.

    The kernel also takes log decays and write weights in bfloat16, so these are rounded.
    """

    contract = CONTRACT

    def launch(self, call: DeltaCall, batch: StateBatch, plan: Decode) -> None:
        """Run one token per sequence."""
        layer, q, k, v, g, beta, out = call
        check_pool(CONTRACT, "state", layer.state, ALIGNMENT)
        rows, heads, size = q.shape
        value_heads = v.shape[1]
        queries = q.new_empty((1, rows, heads, size))
        keys = torch.empty_like(queries)
        values = q.new_empty((1, rows, value_heads, size))
        decays = torch.empty_like(values)
        weights = q.new_empty((1, rows, value_heads))
        slots = batch.write_slots.new_empty(rows, dtype=torch.int32)
        result = out if is_aligned(out, ALIGNMENT) else torch.empty_like(out)
        with _products_for_hopper():
            _launch_stage(
                (rows * value_heads, 1, 1),
                (
                    *(q, k, v, *gate_tensors(call), batch.read_slots, batch.write_slots, layer.state),
                    *(queries, keys, values, decays, weights, slots),
                ),
                (*gate_numbers(layer), *outer_strides(q, k, v, g, beta)),
                (heads, value_heads, size, *gate_constants(layer)),
                num_warps=4,
            )
            recurrent_kda(
                queries,
                keys,
                values,
                decays,
                weights,
                scale=layer.scale,
                initial_state=layer.state,
                use_qk_l2norm_in_kernel=layer.qk_l2norm,
                cu_seqlens=batch.cu_seqlens,
                ssm_state_indices=slots,
                output=result[None],
            )
        if result is not out:
            out.copy_(result)
