"""What the Triton backends of `lightning` and `mamba2` share."""

from __future__ import annotations

from typing import ClassVar

import torch
from switchrail.ops.batch import Phase, StateBatch, VerifyBatch
from switchrail.ops.contract import Contract
from switchrail.ops.phases import OneRun

from switchrail_kernels.drafts import Drafts, Record, replay
from switchrail_kernels.segments import Chunks, Costs


class TritonLinear(OneRun):
    """The phases for compute capability 8.0 and later; any sizes, groups and strides."""

    contract: ClassVar[Contract]
    chunk: ClassVar[int]
    """Tokens a chunk."""
    costs: ClassVar[Costs]
    """What a chunk takes."""

    def plan(self, phase: Phase, batch: StateBatch) -> Chunks | Drafts | None:
        """Cuts the sequences of a prefill into chunks, or finds the paths of drafted rows."""
        self.contract.check_batch(phase, batch, ("checkpoints",))
        if isinstance(batch, VerifyBatch):
            return Drafts.of(batch)
        return None if phase == "decode" else Chunks.of(batch, self.chunk)

    def commit(
        self,
        record: object,
        accepted: torch.Tensor,
        *,
        state: torch.Tensor,
        batch: VerifyBatch,
        plan: object,
    ) -> None:
        """Runs the accepted rows again, from the state that is there."""
        self.contract.check_accepted(batch, accepted)
        assert isinstance(plan, Drafts)
        assert isinstance(record, Record)
        replay(plan, record, accepted, state=state, batch=batch)


__all__ = ["TritonLinear"]
