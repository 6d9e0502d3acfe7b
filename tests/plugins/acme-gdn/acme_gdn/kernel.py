"""Acme's kernels. In this example, Switchrail's backends in plain torch stand in for them."""

from __future__ import annotations

from typing import Any

from switchrail.ops import AttentionCall, GatedDeltaCall, PagedBatch, StateBatch
from switchrail.ops.attention.torch import TorchAttention
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


class AcmeAttention(TorchAttention):
    """Counts its calls."""

    calls = 0

    def run(self, call: AttentionCall, batch: PagedBatch, plan: Any) -> None:
        """See `Backend.run`."""
        super().run(call, batch, plan)
        self.calls += 1
