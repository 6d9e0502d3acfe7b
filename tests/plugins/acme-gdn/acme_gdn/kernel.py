"""The kernel: here Switchrail's plain-torch one, with a configurable scale of its output."""

from __future__ import annotations

from typing import Any

from switchrail.ops import GatedDeltaCall, StateBatch
from switchrail.ops.gated_delta.torch import TorchGatedDelta


class AcmeGatedDelta(TorchGatedDelta):
    """Counts its calls and scales its output."""

    calls = 0

    def run(self, call: GatedDeltaCall, batch: StateBatch, plan: Any) -> Any:
        """See `Backend.run`."""
        record = super().run(call, batch, plan)
        self.calls += 1
        call.out.mul_(self.config.scale)
        return record
