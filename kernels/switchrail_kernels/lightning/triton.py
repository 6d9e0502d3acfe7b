"""Lightning attention in Triton, by the kernels of `switchrail_kernels.linear`."""

from __future__ import annotations

import torch
from switchrail.ops.backend import LightningBackend
from switchrail.ops.batch import Phase, StateBatch
from switchrail.ops.lightning.contract import CONTRACT

from switchrail_kernels.launch import signature
from switchrail_kernels.linear import CHUNK, TimeSteps, step, step_again, walk
from switchrail_kernels.segments import Chunks


class TritonLightning(LightningBackend):
    """Lightning attention for compute capability 8.0 and later; any head sizes and strides."""

    def plan(self, phase: Phase, batch: StateBatch) -> Chunks | None:
        """Cuts the sequences of a prefill into chunks."""
        CONTRACT.check_batch(phase, batch)
        return None if phase == "decode" else Chunks.of(batch, CHUNK.value)

    def prefill(
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
    ) -> None:
        """Runs T packed tokens of N sequences of any length."""
        CONTRACT.check_arguments(
            batch, {"q": q, "k": k, "v": v, "g": g, "state": state, "out": out, "scale": scale}
        )
        assert isinstance(plan, Chunks)
        walk(
            plan,
            q=q,
            k=k,
            v=v,
            rate=g,
            steps=TimeSteps.none(g),
            state=state,
            out=out,
            batch=batch,
            scale=scale,
        )

    def decode(
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
    ) -> None:
        """Runs one token a sequence."""
        key = signature(batch, (q, k, v, g, state, out), (scale,))
        if step_again(key, (q, k, v, g, g, g, g, state, out), batch):
            return
        CONTRACT.check_arguments(
            batch, {"q": q, "k": k, "v": v, "g": g, "state": state, "out": out, "scale": scale}
        )
        step(
            q=q,
            k=k,
            v=v,
            rate=g,
            steps=TimeSteps.none(g),
            state=state,
            out=out,
            batch=batch,
            key=key,
            scale=scale,
        )


__all__ = ["TritonLightning"]
