"""The base class of the Triton backends of the delta rule, for all kinds of gates."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from switchrail.ops.batch import StateBatch
from switchrail.ops.delta_call import DeltaCall

from switchrail_kernels.delta.scan import Prepared, scan
from switchrail_kernels.delta.solve import CHUNK
from switchrail_kernels.delta.step import step
from switchrail_kernels.delta.verify import verify
from switchrail_kernels.drafts import Drafts, Record
from switchrail_kernels.recurrent import TritonRecurrent
from switchrail_kernels.replay import Options, Tensors
from switchrail_kernels.segments import Chunks


class TritonDelta(TritonRecurrent[DeltaCall]):
    """A Triton backend of the delta rule."""

    features = (*TritonRecurrent.features, "deferred_commit", "mixed_weights", "raw_gates")
    chunk = CHUNK.value
    costs = "delta"
    channels: ClassVar[bool]
    """Whether each of a head's K channels has a decay of its own."""

    @staticmethod
    @abstractmethod
    def prepare(call: DeltaCall, plan: Chunks) -> Prepared:
        """Compute the scan's inputs for all chunks."""

    def planned(self, call: DeltaCall, batch: StateBatch, plan: Chunks) -> tuple[Tensors, Options]:
        """The base class's results, and the plan's properties that determine the scan's programs."""
        tensors, options = super().planned(call, batch, plan)
        return tensors, (*options, plan.abreast, plan.are_short, plan.are_single, plan.ahead)

    def launch_step(self, call: DeltaCall, batch: StateBatch) -> None:
        """Decode, in one launch."""
        step(call, batch, channels=self.channels)

    def launch_walk(self, call: DeltaCall, batch: StateBatch, plan: Chunks) -> None:
        """Prepare all chunks, then scan them."""
        scan(call, batch, plan, self.prepare(call, plan), channels=self.channels)

    def launch_verify(self, call: DeltaCall, batch: StateBatch, plan: Drafts) -> Record:
        """Run drafted rows in one launch."""
        return verify(call, batch, plan, channels=self.channels)


__all__ = ["TritonDelta"]
