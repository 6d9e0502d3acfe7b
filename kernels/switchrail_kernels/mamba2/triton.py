"""Mamba 2 in Triton, by the kernels of `switchrail_kernels.linear`."""

from __future__ import annotations

import torch
from switchrail.ops.backend import Mamba2Backend
from switchrail.ops.batch import StateBatch
from switchrail.ops.mamba2.contract import CONTRACT

from switchrail_kernels.drafts import Drafts, Record
from switchrail_kernels.linear.step import step
from switchrail_kernels.linear.time_steps import TimeSteps
from switchrail_kernels.linear.verify import verify
from switchrail_kernels.linear.walk import walk
from switchrail_kernels.recurrent import TritonRecurrent
from switchrail_kernels.replay import Calls, Options, Tensors
from switchrail_kernels.segments import Chunks

_calls = Calls()


class TritonMamba2(TritonRecurrent, Mamba2Backend):
    """Mamba 2."""

    contract = CONTRACT
    chunk = 32
    costs = "mamba2"

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
        plan: Chunks | Drafts | None,
        dt_softplus: bool,
        dt_min: float,
        dt_max: float,
    ) -> Record | None:
        """Runs T packed tokens of N sequences of any length, drafted ones, or one each without a plan."""
        tensors: Tensors = (x, B, C, dt, A, D, dt_bias, state, out, batch.read_slots, batch.write_slots)
        options: Options = (len(batch.seqlens), dt_softplus, dt_min, dt_max)
        if plan is None and _calls.again(tensors, options):
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
            with _calls.record(tensors, options):
                step(q=C, k=B, v=x, rate=A, steps=steps, state=state, out=out, batch=batch, scale=1.0)
            return None
        if isinstance(plan, Drafts):
            return verify(
                plan, q=C, k=B, v=x, rate=A, steps=steps, state=state, out=out, batch=batch, scale=1.0
            )
        planned, cut = plan.arguments(batch, x.shape[1], x.device, self.costs)
        tensors, options = (*tensors, *planned), (*options, *cut)
        if not _calls.again(tensors, options):
            with _calls.record(tensors, options):
                walk(
                    plan,
                    chunk=self.chunk,
                    costs=self.costs,
                    q=C,
                    k=B,
                    v=x,
                    rate=A,
                    steps=steps,
                    state=state,
                    out=out,
                    batch=batch,
                    scale=1.0,
                )
        return None


__all__ = ["TritonMamba2"]
