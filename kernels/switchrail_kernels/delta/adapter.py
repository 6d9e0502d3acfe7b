"""The base class of backends that run a library's kernels of the delta rule."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from switchrail.ops.backend import Backend, Planned, check_plan
from switchrail.ops.batch import Bounds, Phase, StateBatch
from switchrail.ops.contract import Contract
from switchrail.ops.delta_call import DeltaCall

from switchrail_kernels.plans import Decode

FEATURES = ("raw_gates",)


class DeltaAdapter(Backend[DeltaCall, StateBatch]):
    """A library's kernels as a backend."""

    contract: ClassVar[Contract]
    planned: ClassVar[type[Planned]] = Decode
    """The type of plans that the backend makes."""

    def plan(self, phase: Phase, batch: StateBatch, bounds: Bounds | None = None) -> Any:
        """Check the batch against the contract."""
        self.contract.check_batch(phase, batch)
        return Decode(batch)

    @abstractmethod
    def launch(self, call: DeltaCall, batch: StateBatch, plan: Any) -> None:
        """Run a call with at least one row. Its device is the current device."""

    def run(self, call: DeltaCall, batch: StateBatch, plan: object) -> None:
        """Run T packed tokens of N sequences."""
        self.contract.check_call(call, batch, FEATURES)
        check_plan(plan, batch, (self.planned,))
        if call.q.shape[0]:
            with torch.cuda.device(call.q.get_device()):
                self.launch(call, batch, plan)
