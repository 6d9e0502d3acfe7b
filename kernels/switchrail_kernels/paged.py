"""What the Triton backends of ops over a paged cache share: plans, and the order of a call."""

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
    """A step's plan, which remembers what calls of each kind of layer are launched with.

    Attributes:
        batch: The step's batch, which was checked.
    """

    def __init__(self, batch: PagedBatch) -> None:
        self.batch = batch
        self._known: dict[tuple[Any, ...], tuple[Tensors, Options]] = {}

    @property
    def seqlens(self) -> tuple[int, ...]:
        """The rows of its batch's sequences."""
        return self.batch.seqlens

    def known(self, calls: Calls, call: Any, batch: PagedBatch) -> tuple[Tensors, Options] | None:
        """What `keep` was told of an equal call, or None; validates nothing."""
        if batch is not self.batch:
            return None
        try:
            return self._known.get((calls.kind, call[1].shape, call[2].shape))
        except (AttributeError, TypeError):
            return None

    def keep(self, calls: Calls, call: Any, batch: PagedBatch, planned: Tensors, options: Options) -> None:
        """Remembers what a call's launches follow from besides itself; of another batch, nothing."""
        if batch is self.batch:
            self._known[calls.kind, call[1].shape, call[2].shape] = planned, options


class TritonPaged(Backend[CallT, PagedBatch]):
    """For compute capability 8.0 and later."""

    contract: ClassVar[Contract]
    features: ClassVar[tuple[str, ...]]
    """What its calls may ask for."""
    pieces: ClassVar[Any]
    """The type of a decode's plan."""
    tiles: ClassVar[type[PagedPlan]]
    """The type of a prefill's plan, and of a verification's."""

    def plan(self, phase: Phase, batch: PagedBatch, bounds: Bounds | None = None) -> Any:
        """Checks the batch; how rows and caches are cut is decided when the first layer asks."""
        self.contract.check_batch(phase, batch, self.features)
        check_lengths(self.contract, batch)
        return self.pieces(batch, bounds) if phase == "decode" else self.tiles(batch)

    def refresh(self, plan: Any, batch: PagedBatch) -> None:
        """Of decode: another batch within the bounds is cut by its own lengths, on the device.

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
        """What a call's launches follow from besides the call and its batch, and what launches."""

    def run(self, call: CallT, batch: PagedBatch, plan: Any) -> None:
        """Attends T packed query rows of N sequences of any length; in decode one a sequence."""
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
        if known is None and calls.again(brought + planned, count + cut):  # a new step's first layer
            return
        with calls.record(layer, brought + planned, count + cut):
            launch()


__all__ = ["PagedPlan", "TritonPaged"]
