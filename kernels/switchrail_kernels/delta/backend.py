"""What the Triton backends of the delta rule share, whatever their gates are."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from switchrail.ops.batch import StateBatch
from switchrail.ops.gates import GateKind

from switchrail_kernels.delta.gates import Gates
from switchrail_kernels.delta.solve import CHUNK
from switchrail_kernels.delta.step import step
from switchrail_kernels.delta.verify import verify
from switchrail_kernels.drafts import Drafts, Record
from switchrail_kernels.recurrent import TritonRecurrent
from switchrail_kernels.replay import Calls, Options, Tensors
from switchrail_kernels.segments import Chunks


class TritonDelta(TritonRecurrent):
    """The delta rule."""

    chunk = CHUNK.value
    costs = "delta"
    channels: ClassVar[bool]
    """Whether the decays of channels differ."""
    calls: ClassVar[Calls]
    """What was launched before."""

    @staticmethod
    @abstractmethod
    def run_chunks(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        gates: Gates,
        state: torch.Tensor,
        out: torch.Tensor,
        batch: StateBatch,
        plan: Chunks,
        scale: float,
        qk_l2norm: bool,
    ) -> None:
        """Runs one block of chunks or more."""

    def run(
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
        plan: Chunks | Drafts | None,
        scale: float,
        qk_l2norm: bool,
        gate: GateKind | None = None,
        A_log: torch.Tensor | None = None,
        dt_bias: torch.Tensor | None = None,
        lower_bound: float | None = None,
        beta_scale: float | None = None,
    ) -> Record | None:
        """Runs T packed tokens of N sequences of any length, or one each where there is no plan."""
        tensors: Tensors = (q, k, v, g, beta, A_log, dt_bias, state, out, batch.read_slots, batch.write_slots)
        options: Options = (len(batch.seqlens), scale, qk_l2norm, gate, lower_bound, beta_scale)
        if plan is None and self.calls.again(tensors, options):
            return None
        gates = Gates(g, beta, A_log, dt_bias, gate, lower_bound, beta_scale)
        named = {"q": q, "k": k, "v": v, "state": state, "out": out, **gates._asdict()}
        self.contract.check_arguments(batch, {**named, "scale": scale, "qk_l2norm": qk_l2norm})
        if plan is None:
            with self.calls.record(tensors, options):
                step(
                    q,
                    k,
                    v,
                    gates=gates,
                    state=state,
                    out=out,
                    batch=batch,
                    scale=scale,
                    qk_l2norm=qk_l2norm,
                    channels=self.channels,
                )
            return None
        if isinstance(plan, Drafts):
            return verify(
                q,
                k,
                v,
                gates=gates,
                state=state,
                out=out,
                batch=batch,
                plan=plan,
                scale=scale,
                qk_l2norm=qk_l2norm,
                channels=self.channels,
            )
        planned, cut = plan.arguments(batch, v.shape[1], v.device, self.costs)
        tensors, options = (*tensors, *planned), (*options, *cut, plan.abreast)
        if len(plan.blocks) and not self.calls.again(tensors, options):
            with self.calls.record(tensors, options):
                self.run_chunks(
                    q,
                    k,
                    v,
                    gates=gates,
                    state=state,
                    out=out,
                    batch=batch,
                    plan=plan,
                    scale=scale,
                    qk_l2norm=qk_l2norm,
                )
        return None


__all__ = ["TritonDelta"]
