"""What the Triton backends of ops with a [V, K] state share: their plans, and the commit of drafts."""

from __future__ import annotations

from types import NoneType
from typing import ClassVar

import torch
from switchrail.ops.backend import foreign
from switchrail.ops.batch import Phase, StateBatch, VerifyBatch
from switchrail.ops.contract import Contract
from switchrail.ops.phases import OneRun

from switchrail_kernels.drafts import Drafts, Record, replay
from switchrail_kernels.fitted import Walk
from switchrail_kernels.segments import Chunks


class TritonRecurrent(OneRun):
    """The phases for compute capability 8.0 and later; any head sizes, groups and strides."""

    plan_types: ClassVar[dict[Phase, type]] = {"prefill": Chunks, "decode": NoneType, "verify": Drafts}
    contract: ClassVar[Contract]
    chunk: ClassVar[int]
    """Tokens a chunk."""
    per_block: ClassVar[int] = 1
    """Chunks that one program prepares."""
    costs: ClassVar[Walk]
    """Name of its walk in a device's table."""

    def plan(self, phase: Phase, batch: StateBatch) -> Chunks | Drafts | None:
        """Cuts the sequences of a prefill into chunks, or finds the paths of drafted rows."""
        self.contract.check_batch(phase, batch, ("checkpoints",))
        if isinstance(batch, VerifyBatch):
            return Drafts.of(batch)
        return None if phase == "decode" else Chunks.of(batch, self.chunk, self.per_block)

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
        if not isinstance(plan, Drafts):
            raise foreign("plan", plan)
        if not isinstance(record, Record):
            raise foreign("record", record)
        replay(plan, record, accepted, state=state, batch=batch)


__all__ = ["TritonRecurrent"]
