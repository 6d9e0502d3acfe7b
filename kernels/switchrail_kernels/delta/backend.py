"""What the Triton backends of the delta rule share, whatever their gates are."""

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
from switchrail_kernels.plans import Decode, check_state_plan
from switchrail_kernels.recurrent import TritonRecurrent
from switchrail_kernels.replay import Options, Tensors, calls_of
from switchrail_kernels.segments import Chunks

FEATURES = ("raw_gates", "checkpoints")


class TritonDelta(TritonRecurrent[DeltaCall]):
    """The delta rule."""

    chunk = CHUNK.value
    costs = "delta"
    channels: ClassVar[bool]
    """Whether the decays of channels differ."""

    @staticmethod
    @abstractmethod
    def prepare(call: DeltaCall, plan: Chunks) -> Prepared:
        """Computes what the walk reads of one block of chunks or more."""

    def run(self, call: DeltaCall, batch: StateBatch, plan: Decode | Chunks | Drafts) -> Record | None:
        """Runs T packed tokens of N sequences of any length, drafted ones, or one each."""
        calls = call.layer.kept.get(type(self))
        if calls is None:
            self.contract.check_call(call, batch, FEATURES)
            calls = calls_of(call.layer, type(self))
        layer, q, k, v, g, beta, out = call
        tensors: Tensors = (q, k, v, g, beta, out, batch.read_slots, batch.write_slots)
        options: Options = (len(batch.seqlens),)
        if plan.__class__ is Decode and batch.__class__ is StateBatch and calls.again(tensors, options):
            return None
        check_state_plan(plan, batch, Chunks, Drafts)
        if isinstance(plan, Chunks):
            planned, cut = plan.arguments(batch, layer.state.shape[1], layer.state.device, self.costs)
            tensors, options = (*tensors, *planned), (*options, *cut, plan.abreast)
            if calls.again(tensors, options):
                return None
        self.contract.check_call(call, batch, FEATURES)
        if isinstance(plan, Drafts):
            return verify(call, batch, plan, channels=self.channels)
        with calls.record(layer, tensors, options):
            if isinstance(plan, Decode):
                step(call, batch, channels=self.channels)
            elif len(plan.blocks):
                scan(call, batch, plan, self.prepare(call, plan), channels=self.channels)
        return None


__all__ = ["TritonDelta"]
