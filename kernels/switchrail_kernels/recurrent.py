"""What the Triton backends of ops with a [V, K] state share: their plans, and the commit of drafts."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from switchrail.ops.backend import Backend, foreign
from switchrail.ops.batch import Bounds, Phase, StateBatch, VerifyBatch
from switchrail.ops.call import CallT
from switchrail.ops.contract import Contract

from switchrail_kernels.drafts import Drafts, Record, replay
from switchrail_kernels.fitted import Walk
from switchrail_kernels.plans import Decode, refresh_decode
from switchrail_kernels.segments import Chunks


class TritonRecurrent(Backend[CallT, StateBatch]):
    """For compute capability 8.0 and later; any head sizes, groups and strides."""

    contract: ClassVar[Contract]
    chunk: ClassVar[int]
    """Tokens a chunk."""
    per_block: ClassVar[int] = 1
    """Chunks that one program prepares."""
    costs: ClassVar[Walk]
    """Name of its walk in a device's table."""

    def plan(self, phase: Phase, batch: StateBatch, bounds: Bounds | None = None) -> Decode | Chunks | Drafts:
        """Cuts the sequences of a prefill into chunks, or finds the paths of drafted rows."""
        self.contract.check_batch(phase, batch, ("checkpoints",))
        if isinstance(batch, VerifyBatch):
            return Drafts.of(batch)
        if phase == "decode":
            return Decode(len(batch.seqlens))
        return Chunks.of(batch, self.chunk, self.per_block)

    def refresh(self, plan: Any, batch: StateBatch) -> None:
        """Of decode: another batch of as many sequences.

        Raises:
            ArgumentError: The plan is another phase's.
            ContractError: The batch is no such one.
        """
        refresh_decode(self.contract, plan, batch)

    def commit(
        self, call: CallT, batch: VerifyBatch, plan: object, record: object, accepted: torch.Tensor
    ) -> None:
        """Runs the accepted rows again, from the state that is there."""
        self.contract.check_accepted(batch, accepted)
        if not isinstance(plan, Drafts):
            raise foreign("plan", plan)
        if not isinstance(record, Record):
            raise foreign("record", record)
        replay(plan, record, accepted, state=call[0].state, batch=batch)


__all__ = ["TritonRecurrent"]
