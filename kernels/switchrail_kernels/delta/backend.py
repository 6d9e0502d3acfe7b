"""What the Triton backends of the delta rule share, whatever their gates are."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from switchrail.ops.batch import Phase, StateBatch
from switchrail.ops.contract import Contract
from switchrail.ops.phases import OneRun

from switchrail_kernels.delta.solve import BLOCK, CHUNK
from switchrail_kernels.delta.step import step, step_again
from switchrail_kernels.launch import signature
from switchrail_kernels.segments import Chunks


class TritonDelta(OneRun):
    """The phases for compute capability 8.0 and later; any head sizes, groups and strides."""

    contract: ClassVar[Contract]
    channels: ClassVar[bool]
    """Whether the decays of channels differ."""

    @staticmethod
    @abstractmethod
    def run_chunks(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        g: torch.Tensor,
        beta: torch.Tensor,
        state: torch.Tensor,
        out: torch.Tensor,
        batch: StateBatch,
        plan: Chunks,
        scale: float,
        qk_l2norm: bool,
    ) -> None:
        """Runs one block of chunks or more."""

    def plan(self, phase: Phase, batch: StateBatch) -> Chunks | None:
        """Cuts the sequences of a prefill into chunks."""
        self.contract.check_batch(phase, batch)
        return None if phase == "decode" else Chunks.of(batch, CHUNK.value, BLOCK.value // CHUNK.value)

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
        plan: object,
        scale: float,
        qk_l2norm: bool,
    ) -> None:
        """Runs T packed tokens of N sequences of any length, or one each where there is no plan."""
        tensors = (q, k, v, g, beta, state, out)
        key = None
        if plan is None:
            key = signature(batch, tensors, (scale, qk_l2norm, self.channels))
            if step_again(key, tensors, batch):
                return
        named = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "state": state, "out": out}
        self.contract.check_arguments(batch, {**named, "scale": scale, "qk_l2norm": qk_l2norm})
        if plan is None:
            step(
                q,
                k,
                v,
                g=g,
                beta=beta,
                state=state,
                out=out,
                batch=batch,
                key=key,
                scale=scale,
                qk_l2norm=qk_l2norm,
                channels=self.channels,
            )
            return
        assert isinstance(plan, Chunks)
        if len(plan.blocks):
            self.run_chunks(
                q,
                k,
                v,
                g=g,
                beta=beta,
                state=state,
                out=out,
                batch=batch,
                plan=plan,
                scale=scale,
                qk_l2norm=qk_l2norm,
            )


__all__ = ["TritonDelta"]
