"""The base class of the Triton backends of `lightning` and `mamba2`."""

from __future__ import annotations

from abc import abstractmethod

from switchrail.ops.batch import StateBatch
from switchrail.ops.call import CallT

from switchrail_kernels.drafts import Drafts, Record
from switchrail_kernels.linear.operands import Operands
from switchrail_kernels.linear.step import step
from switchrail_kernels.linear.verify import verify
from switchrail_kernels.linear.walk import walk
from switchrail_kernels.recurrent import TritonRecurrent
from switchrail_kernels.segments import Chunks


class TritonLinear(TritonRecurrent[CallT]):
    """A Triton backend of linear attention with a decay per head and token."""

    chunk = 32

    @staticmethod
    @abstractmethod
    def operands(call: CallT) -> Operands:
        """The call's tensors under the names that the kernels use."""

    def launch_step(self, call: CallT, batch: StateBatch) -> None:
        """Launch one kernel."""
        step(self.operands(call), batch)

    def launch_walk(self, call: CallT, batch: StateBatch, plan: Chunks) -> None:
        """Scan the chunks."""
        walk(self.operands(call), batch, plan, self.chunk, self.costs)

    def launch_verify(self, call: CallT, batch: StateBatch, plan: Drafts) -> Record:
        """Run drafted rows in one launch."""
        return verify(self.operands(call), batch, plan)
