"""Backends that the tests register."""

from switchrail.ops.attention.torch import TorchAttention
from switchrail.ops.gated_delta.torch import TorchGatedDelta
from switchrail.ops.short_conv.torch import TorchShortConv


class PlainGatedDelta(TorchGatedDelta):
    """A vendor's kernel that claims no optional feature."""

    calls = 0

    def run(self, call, batch, plan):
        self.calls += 1
        assert call.layer.gate is None
        return super().run(call, batch, plan)


class Refreshed:
    """Adds a `refresh` that replaces the plan's contents in place, as a captured graph needs."""

    def plan(self, phase, batch, bounds=None):
        return [super().plan(phase, batch, bounds), phase]

    def refresh(self, plan, batch):
        plan[:] = self.plan(plan[1], batch)

    def run(self, call, batch, plan):
        return super().run(call, batch, plan[0])


class RecordedGatedDelta(Refreshed, TorchGatedDelta):
    pass


class RecordedConvolution(Refreshed, TorchShortConv):
    pass


class RecordedAttention(Refreshed, TorchAttention):
    pass
