"""Common base of the Triton backends of `lightning` and `mamba2`."""

from __future__ import annotations

from abc import abstractmethod

from switchrail.ops.batch import StateBatch
from switchrail.ops.call import CallT

from switchrail_kernels.drafts import Drafts, Record
from switchrail_kernels.linear.operands import Operands
from switchrail_kernels.linear.step import step
from switchrail_kernels.linear.verify import verify
from switchrail_kernels.linear.walk import walk
from switchrail_kernels.plans import Decode, check_state_plan
from switchrail_kernels.recurrent import TritonRecurrent
from switchrail_kernels.replay import Options, Tensors, calls_of
from switchrail_kernels.segments import Chunks

FEATURES = ("checkpoints",)


class TritonLinear(TritonRecurrent[CallT]):
    """Linear attention with a decay a head and token."""

    chunk = 32

    @staticmethod
    @abstractmethod
    def operands(call: CallT) -> Operands:
        """The call under the names that the kernels use."""

    def run(self, call: CallT, batch: StateBatch, plan: Decode | Chunks | Drafts) -> Record | None:
        """Runs T packed tokens of N sequences of any length, drafted ones, or one each."""
        layer, *brought = call
        calls = calls_of(layer, type(self))
        tensors: Tensors = (*brought, batch.read_slots, batch.write_slots)
        options: Options = (len(batch.seqlens),)
        if plan.__class__ is Decode and batch.__class__ is StateBatch and calls.again(tensors, options):
            return None
        self.contract.check_call(call, batch, FEATURES)
        check_state_plan(plan, batch, Chunks, Drafts)
        operands = self.operands(call)
        if isinstance(plan, Decode):
            with calls.record(layer, tensors, options):
                step(operands, batch)
            return None
        if isinstance(plan, Drafts):
            return verify(operands, batch, plan)
        planned, cut = plan.arguments(batch, operands.v.shape[1], operands.v.device, self.costs)
        tensors, options = (*tensors, *planned), (*options, *cut)
        if not calls.again(tensors, options):
            with calls.record(layer, tensors, options):
                walk(operands, batch, plan, self.chunk, self.costs)
        return None


__all__ = ["TritonLinear"]
