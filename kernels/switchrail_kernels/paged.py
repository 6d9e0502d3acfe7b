"""Common parts of the Triton backends of ops over a paged cache: plans, and the order of a call."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from switchrail.ops.backend import Backend, check_plan, foreign
from switchrail.ops.batch import Bounds, PagedBatch, Phase
from switchrail.ops.call import CallT
from switchrail.ops.contract import Contract
from switchrail.ops.pages import check_lengths

from switchrail_kernels.replay import Calls, Options, Tensors, calls_of


class PagedPlan:
    """A step's plan. Caches the launch arguments for each kind of layer.

    Attributes:
        batch: The step's batch, which was checked.
    """

    def __init__(self, batch: PagedBatch) -> None:
        self.batch = batch
        self._known: dict[tuple[Any, ...], tuple[Tensors, Options]] = {}

    @property
    def seqlens(self) -> tuple[int, ...]:
        """The lengths of the batch's sequences."""
        return self.batch.seqlens

    def known(self, calls: Calls, call: Any, batch: PagedBatch) -> tuple[Tensors, Options] | None:
        """The cached arguments of an equal call, or None; validates nothing."""
        if batch is not self.batch:
            return None
        try:
            return self._known.get((calls.kind, call[1].shape, call[2].shape))
        except (AttributeError, TypeError):
            return None

    def keep(self, calls: Calls, call: Any, batch: PagedBatch, planned: Tensors, options: Options) -> None:
        """Cache the arguments of a call's launches. Does nothing for a batch other than the plan's."""
        if batch is self.batch:
            self._known[calls.kind, call[1].shape, call[2].shape] = planned, options


class TritonPaged(Backend[CallT, PagedBatch]):
    """For compute capability 8.0 and later."""

    contract: ClassVar[Contract]
    features: ClassVar[tuple[str, ...]]
    """The features that its calls may use."""
    pieces: ClassVar[Any]
    """The type of a decode's plan."""
    tiles: ClassVar[type[PagedPlan]]
    """The type of a plan for prefill or verification."""

    def plan(self, phase: Phase, batch: PagedBatch, bounds: Bounds | None = None) -> Any:
        """Check the batch. The first layer decides how rows and caches are split."""
        self.contract.check_batch(phase, batch, self.features)
        check_lengths(self.contract, batch)
        return self.pieces(batch, bounds) if phase == "decode" else self.tiles(batch)

    def refresh(self, plan: Any, batch: PagedBatch) -> None:
        """Update a decode's plan for another batch within the bounds; the device computes the split.

        Raises:
            ArgumentError: The plan is another phase's, or has no bounds.
        """
        if not isinstance(plan, self.pieces):
            raise foreign("plan", plan)
        plan.refresh(batch)

    @abstractmethod
    def prepare(
        self, call: CallT, batch: PagedBatch, plan: Any
    ) -> tuple[Tensors, Options, Callable[[], None]]:
        """Launch arguments that don't follow from the call and its batch, and the launching function."""

    def run(self, call: CallT, batch: PagedBatch, plan: Any) -> None:
        """Compute attention for T packed query rows of N sequences of any length; one row each in decode."""
        layer = call[0]
        brought: Tensors = (*call[1:], batch.cu_seqlens, batch.page_table, batch.kv_lens)
        count = (len(batch.seqlens),)
        calls = layer.kept.get(type(self))
        known = None
        if calls is not None and isinstance(plan, PagedPlan):
            known = plan.known(calls, call, batch)
            if known is not None and calls.again(brought + known[0], count + known[1]):
                return
        self.contract.check_call(call, batch, self.features)
        check_plan(plan, batch, (self.pieces, self.tiles))
        *_, out, _ = call
        if out.numel() == 0:
            return
        planned, cut, launch = self.prepare(call, batch, plan)
        calls = calls_of(layer, type(self))
        plan.keep(calls, call, batch, planned, cut)
        if known is None and calls.again(brought + planned, count + cut):  # the first layer of a new step
            return
        with calls.record(layer, brought + planned, count + cut):
            launch()


__all__ = ["PagedPlan", "TritonPaged"]
