"""Lightning attention in Triton, by the kernels of `switchrail_kernels.linear`."""

from __future__ import annotations

import torch
from switchrail.ops.backend import LightningBackend
from switchrail.ops.batch import StateBatch
from switchrail.ops.lightning.contract import CONTRACT

from switchrail_kernels.drafts import Drafts, Record
from switchrail_kernels.launch import signature
from switchrail_kernels.linear.backend import TritonLinear
from switchrail_kernels.linear.step import step, step_again
from switchrail_kernels.linear.time_steps import TimeSteps
from switchrail_kernels.linear.verify import verify
from switchrail_kernels.linear.walk import walk
from switchrail_kernels.segments import Chunks


class TritonLightning(TritonLinear, LightningBackend):
    """Lightning attention."""

    contract = CONTRACT

    def run(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        g: torch.Tensor,
        state: torch.Tensor,
        out: torch.Tensor,
        batch: StateBatch,
        plan: object,
        scale: float,
    ) -> Record | None:
        """Runs T packed tokens of N sequences of any length, drafted ones, or one each without a plan."""
        key = None
        if plan is None:
            key = signature(batch, (q, k, v, g, state, out), (scale,))
            if step_again(key, (q, k, v, g, g, g, g, state, out), batch):
                return None
        CONTRACT.check_arguments(
            batch, {"q": q, "k": k, "v": v, "g": g, "state": state, "out": out, "scale": scale}
        )
        steps = TimeSteps.none(g)
        if plan is None:
            step(q=q, k=k, v=v, rate=g, steps=steps, state=state, out=out, batch=batch, scale=scale, key=key)
            return None
        if isinstance(plan, Drafts):
            return verify(
                plan, q=q, k=k, v=v, rate=g, steps=steps, state=state, out=out, batch=batch, scale=scale
            )
        assert isinstance(plan, Chunks)
        walk(plan, q=q, k=k, v=v, rate=g, steps=steps, state=state, out=out, batch=batch, scale=scale)
        return None


__all__ = ["TritonLightning"]
