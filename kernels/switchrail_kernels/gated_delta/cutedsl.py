"""Decode of the gated delta rule in the CuTe DSL."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import cuda.bindings.driver as cuda
import cutlass
import torch
from cutlass import cute
from switchrail.ops.backend import GatedDeltaBackend
from switchrail.ops.batch import Phase, StateBatch
from switchrail.ops.gated_delta.contract import CONTRACT
from switchrail.ops.gates import GateKind

from switchrail_kernels.delta.gates import Gates
from switchrail_kernels.gated_delta.step_cute import Step
from switchrail_kernels.wrappers import check_cache

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

    def decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        g: torch.Tensor,
        beta: torch.Tensor,
        state: torch.Tensor,
        out: torch.Tensor,
        batch: StateBatch,
        plan: object,
        scale: float,
        qk_l2norm: bool,
        gate: GateKind | None = None,
        A_log: torch.Tensor | None = None,
        dt_bias: torch.Tensor | None = None,
        lower_bound: float | None = None,
        beta_scale: float | None = None,
    ) -> None:
        """Runs one token a sequence."""
        gates = Gates(g, beta, A_log, dt_bias, gate, lower_bound, beta_scale)
        named = {"q": q, "k": k, "v": v, "state": state, "out": out, **gates._asdict()}
        CONTRACT.check_arguments(batch, {**named, "scale": scale, "qk_l2norm": qk_l2norm})
        sequences, heads, key_size = q.shape
        if sequences == 0:
            return
        check_cache(CONTRACT, "state", state)
        bias = gates.tensors[-1].dtype
        step = _compile(
            (q.dtype, g.dtype, beta.dtype, bias, state.dtype),
            key_size,
            v.shape[2],
            qk_l2norm,
            *gates.constants,
        )
        tensors = (q, k, v, *gates.tensors, state, out, batch.read_slots, batch.write_slots)
        index = q.get_device()
        with torch.cuda.device(index):
            step(
                tuple(tensor.data_ptr() for tensor in tensors),
                tuple(s for tensor in (q, k, v, g, beta) for s in tensor.stride()[:2]),
                sequences,
                heads,
                v.shape[1],
                scale,
                *gates.numbers,
                cuda.CUstream(torch.cuda.current_stream(index).cuda_stream),
            )


__all__ = ["CuteGatedDelta"]
