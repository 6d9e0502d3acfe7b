"""Decode of the gated delta rule in the CuTe DSL."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import NoneType

import cuda.bindings.driver as cuda
import cutlass
import torch
from cutlass import cute
from switchrail.ops.backend import GatedDeltaBackend
from switchrail.ops.batch import Phase, StateBatch
from switchrail.ops.gated_delta.contract import CONTRACT

from switchrail_kernels.alignment import check_pool
from switchrail_kernels.delta.call import DeltaCall, checked
from switchrail_kernels.gated_delta.step_cute import Step

_TYPES = {
    torch.float32: cutlass.Float32,
    torch.float16: cutlass.Float16,
    torch.bfloat16: cutlass.BFloat16,
}


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


class CuteGatedDelta(GatedDeltaBackend):
    """One launch a call, for compute capability 9.0 and head sizes of 64, 128 and 256."""

    def plan(self, phase: Phase, batch: StateBatch) -> None:
        """Holds the batch to the contract."""
        CONTRACT.check_batch(phase, batch)

    @checked(CONTRACT, NoneType)
    def decode(self, call: DeltaCall, plan: None) -> None:
        """Runs one token a sequence."""
        check_pool(CONTRACT, "state", call.state)
        q, v, gates = call.q, call.v, call.gates
        sequences, heads, key_size = q.shape
        bias = gates.tensors[-1].dtype
        step = _compile(
            (q.dtype, gates.g.dtype, gates.beta.dtype, bias, call.state.dtype),
            key_size,
            v.shape[2],
            call.qk_l2norm,
            *gates.constants,
        )
        slots = call.batch.read_slots, call.batch.write_slots
        tensors = (q, call.k, v, *gates.tensors, call.state, call.out, *slots)
        step(
            tuple(tensor.data_ptr() for tensor in tensors),
            call.strides,
            sequences,
            heads,
            v.shape[1],
            call.scale,
            *gates.numbers,
            cuda.CUstream(torch.cuda.current_stream(q.get_device()).cuda_stream),
        )


__all__ = ["CuteGatedDelta"]
