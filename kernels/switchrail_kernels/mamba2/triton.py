"""Mamba 2 in Triton, by the kernels of `switchrail_kernels.linear`."""

from __future__ import annotations

import torch
from switchrail.ops.backend import Mamba2Backend
from switchrail.ops.batch import StateBatch
from switchrail.ops.mamba2.contract import CONTRACT

from switchrail_kernels.drafts import Drafts, Record
from switchrail_kernels.launch import signature
from switchrail_kernels.linear.backend import TritonLinear
from switchrail_kernels.linear.step import step, step_again
from switchrail_kernels.linear.time_steps import TimeSteps
from switchrail_kernels.linear.verify import verify
from switchrail_kernels.linear.walk import walk
from switchrail_kernels.segments import Chunks


class TritonMamba2(TritonLinear, Mamba2Backend):
    """Mamba 2."""

    contract = CONTRACT

    def run(
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
    ) -> Record | None:
        """Runs T packed tokens of N sequences of any length, drafted ones, or one each without a plan."""
        key = None
        if plan is None:
            options = (dt_softplus, dt_min, dt_max)
            key = signature(batch, (x, B, C, dt, A, D, dt_bias, state, out), options)
            if key is not None:
                skip, bias = dt if D is None else D, dt if dt_bias is None else dt_bias
                if step_again(key, (C, B, x, A, dt, bias, skip, state, out), batch):
                    return None
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
        if plan is None:
            step(q=C, k=B, v=x, rate=A, steps=steps, state=state, out=out, batch=batch, scale=1.0, key=key)
            return None
        if isinstance(plan, Drafts):
            return verify(
                plan, q=C, k=B, v=x, rate=A, steps=steps, state=state, out=out, batch=batch, scale=1.0
            )
        assert isinstance(plan, Chunks)
        walk(plan, q=C, k=B, v=x, rate=A, steps=steps, state=state, out=out, batch=batch, scale=1.0)
        return None


__all__ = ["TritonMamba2"]
