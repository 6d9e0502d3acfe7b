"""Decode of the gated delta rule in the CuTe DSL."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import cuda.bindings.driver as cuda
import cutlass
import torch
from cutlass import cute
from switchrail.ops.batch import StateBatch
from switchrail.ops.delta_call import DeltaCall
from switchrail.ops.gated_delta.contract import CONTRACT, GatedDeltaBackend

from switchrail_kernels.alignment import check_pool
from switchrail_kernels.delta.adapter import DeltaAdapter
from switchrail_kernels.delta.call import gate_constants, gate_numbers, gate_tensors, outer_strides
from switchrail_kernels.gated_delta.step_cute import Step
from switchrail_kernels.plans import Decode, refresh_decode

_TYPES = {torch.float32: cutlass.Float32, torch.float16: cutlass.Float16, torch.bfloat16: cutlass.BFloat16}


@cache
def _compile(
    dtypes: tuple[torch.dtype, ...],
    key_size: int,
    value_size: int,
    l2norm: bool,
    kind: int,
    biased: bool,
    raw_beta: bool,
) -> Callable[..., None]:
    io, gate, beta, bias, state = (_TYPES[dtype] for dtype in dtypes)
    step = Step(
        io=io,
        gate=gate,
        beta=beta,
        bias=bias if biased else None,
        state=state,
        key_size=key_size,
        value_size=value_size,
        l2norm=l2norm,
        kind=kind,
        raw_beta=raw_beta,
    )
    compiled: Callable[..., None] = cute.compile(
        step,
        (cutlass.Int64(0),) * 11,
        (cutlass.Int64(0),) * 10,
        *(cutlass.Int32(0),) * 3,
        *(cutlass.Float32(0),) * 3,
        cuda.CUstream(0),
        options="--enable-tvm-ffi",
    )
    return compiled


class CuteGatedDelta(DeltaAdapter, GatedDeltaBackend):
    """Decode in one launch, for compute capability 9.0 and head sizes of 64, 128 and 256."""

    contract = CONTRACT

    def refresh(self, plan: object, batch: StateBatch) -> None:
        """Reuse the plan for another batch with the same number of sequences.

        Raises:
            ArgumentError: Another backend made the plan.
            ContractError: The batch and the plan differ in the number of sequences.
        """
        refresh_decode(CONTRACT, plan, batch)

    def launch(self, call: DeltaCall, batch: StateBatch, plan: Decode) -> None:
        """Run one token per sequence."""
        layer, q, k, v, g, beta, out = call
        check_pool(CONTRACT, "state", layer.state)
        sequences, heads, key_size = q.shape
        gates = gate_tensors(call)
        step = _compile(
            (q.dtype, g.dtype, beta.dtype, gates[-1].dtype, layer.state.dtype),
            key_size,
            v.shape[2],
            layer.qk_l2norm,
            *gate_constants(layer),
        )
        tensors = (q, k, v, *gates, layer.state, out, batch.read_slots, batch.write_slots)
        step(
            tuple(tensor.data_ptr() for tensor in tensors),
            outer_strides(q, k, v, g, beta),
            sequences,
            heads,
            v.shape[1],
            layer.scale,
            *gate_numbers(layer),
            cuda.CUstream(torch.cuda.current_stream(q.get_device()).cuda_stream),
        )
