"""Mamba 2 in Triton, by the kernels of `switchrail_kernels.linear`."""

from __future__ import annotations

import torch
from switchrail.ops.backend import Mamba2Backend
from switchrail.ops.batch import Phase, StateBatch
from switchrail.ops.mamba2.contract import CONTRACT

from switchrail_kernels.launch import signature
from switchrail_kernels.linear import CHUNK, TimeSteps, step, step_again, walk
from switchrail_kernels.segments import Chunks


class TritonMamba2(Mamba2Backend):
    """Mamba 2 for compute capability 8.0 and later; any sizes, groups and strides."""

    def plan(self, phase: Phase, batch: StateBatch) -> Chunks | None:
        """Cuts the sequences of a prefill into chunks."""
        CONTRACT.check_batch(phase, batch)
        return None if phase == "decode" else Chunks.of(batch, CHUNK.value)

    def prefill(
        self,
        x: torch.Tensor,
        B: torch.Tensor,
        C: torch.Tensor,
        *,
        dt: torch.Tensor,
        A: torch.Tensor,
        D: torch.Tensor | None,
        dt_bias: torch.Tensor | None,
        state: torch.Tensor,
        out: torch.Tensor,
        batch: StateBatch,
        plan: object,
        dt_softplus: bool,
        dt_min: float,
        dt_max: float,
    ) -> None:
        """Runs T packed tokens of N sequences of any length."""
        CONTRACT.check_arguments(
            batch,
            {
                "x": x,
                "B": B,
                "C": C,
                "dt": dt,
                "A": A,
                "D": D,
                "dt_bias": dt_bias,
                "state": state,
                "out": out,
                "dt_softplus": dt_softplus,
                "dt_min": dt_min,
                "dt_max": dt_max,
            },
        )
        assert isinstance(plan, Chunks)
        steps = TimeSteps.of(dt, dt_bias, D, dt_softplus, (dt_min, dt_max))
        walk(plan, q=C, k=B, v=x, rate=A, steps=steps, state=state, out=out, batch=batch, scale=1.0)

    def decode(
        self,
        x: torch.Tensor,
        B: torch.Tensor,
        C: torch.Tensor,
        *,
        dt: torch.Tensor,
        A: torch.Tensor,
        D: torch.Tensor | None,
        dt_bias: torch.Tensor | None,
        state: torch.Tensor,
        out: torch.Tensor,
        batch: StateBatch,
        plan: object,
        dt_softplus: bool,
        dt_min: float,
        dt_max: float,
    ) -> None:
        """Runs one token a sequence."""
        options = (dt_softplus, dt_min, dt_max)
        key = signature(batch, (x, B, C, dt, A, D, dt_bias, state, out), options)
        if key is not None:
            skip, bias = dt if D is None else D, dt if dt_bias is None else dt_bias
            if step_again(key, (C, B, x, A, dt, bias, skip, state, out), batch):
                return
        CONTRACT.check_arguments(
            batch,
            {
                "x": x,
                "B": B,
                "C": C,
                "dt": dt,
                "A": A,
                "D": D,
                "dt_bias": dt_bias,
                "state": state,
                "out": out,
                "dt_softplus": dt_softplus,
                "dt_min": dt_min,
                "dt_max": dt_max,
            },
        )
        steps = TimeSteps.of(dt, dt_bias, D, dt_softplus, (dt_min, dt_max))
        step(q=C, k=B, v=x, rate=A, steps=steps, state=state, out=out, batch=batch, key=key, scale=1.0)


__all__ = ["TritonMamba2"]
