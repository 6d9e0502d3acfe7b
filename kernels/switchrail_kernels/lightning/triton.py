"""Lightning attention in Triton, by the kernels of `switchrail_kernels.linear`."""

from __future__ import annotations

import torch
from switchrail.ops.backend import LightningBackend
from switchrail.ops.batch import StateBatch
from switchrail.ops.lightning.contract import CONTRACT

from switchrail_kernels.drafts import Drafts, Record
from switchrail_kernels.linear.step import step
from switchrail_kernels.linear.time_steps import TimeSteps
from switchrail_kernels.linear.verify import verify
from switchrail_kernels.linear.walk import walk
from switchrail_kernels.recurrent import TritonRecurrent
from switchrail_kernels.replay import Calls, Options, Tensors
from switchrail_kernels.segments import Chunks

_calls = Calls()


class TritonLightning(TritonRecurrent, LightningBackend):
    """Lightning attention."""

    contract = CONTRACT
    chunk = 32
    costs = "lightning"

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
        plan: Chunks | Drafts | None,
        scale: float,
    ) -> Record | None:
        """Runs T packed tokens of N sequences of any length, drafted ones, or one each without a plan."""
        tensors: Tensors = (q, k, v, g, state, out, batch.read_slots, batch.write_slots)
        options: Options = (len(batch.seqlens), scale)
        if plan is None and _calls.again(tensors, options):
            return None
        CONTRACT.check_arguments(
            batch, {"q": q, "k": k, "v": v, "g": g, "state": state, "out": out, "scale": scale}
        )
        steps = TimeSteps.none(g)
        if plan is None:
            with _calls.record(tensors, options):
                step(q=q, k=k, v=v, rate=g, steps=steps, state=state, out=out, batch=batch, scale=scale)
            return None
        if isinstance(plan, Drafts):
            return verify(
                plan, q=q, k=k, v=v, rate=g, steps=steps, state=state, out=out, batch=batch, scale=scale
            )
        planned, cut = plan.arguments(batch, v.shape[1], v.device, self.costs)
        tensors, options = (*tensors, *planned), (*options, *cut)
        if not _calls.again(tensors, options):
            with _calls.record(tensors, options):
                walk(
                    plan,
                    chunk=self.chunk,
                    costs=self.costs,
                    q=q,
                    k=k,
                    v=v,
                    rate=g,
                    steps=steps,
                    state=state,
                    out=out,
                    batch=batch,
                    scale=scale,
                )
        return None


__all__ = ["TritonLightning"]
