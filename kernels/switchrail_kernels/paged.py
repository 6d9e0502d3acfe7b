"""What the Triton backends of ops over a paged cache share: their plans, and the order of a call."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from switchrail.ops.backend import Backend, check_plan, foreign
from switchrail.ops.batch import Bounds, PagedBatch, Phase
from switchrail.ops.call import CallT
from switchrail.ops.contract import Contract
from switchrail.ops.pages import check_lengths

from switchrail_kernels.decode import DecodePlan
from switchrail_kernels.replay import Options, Tensors, calls_of
from switchrail_kernels.tiles import TilesPlan


class TritonPaged(Backend[CallT, PagedBatch]):
    """For compute capability 8.0 and later."""

    contract: ClassVar[Contract]
    features: ClassVar[tuple[str, ...]]
    """What its calls may ask for."""
    pieces: ClassVar[type[DecodePlan[Any, Any]]]
    """The type of a decode's plan."""
    tiles: ClassVar[type[TilesPlan]]
    """The type of a prefill's plan, and of a verification's."""

    def plan(self, phase: Phase, batch: PagedBatch, bounds: Bounds | None = None) -> Any:
        """Checks the batch; how rows and caches are cut is decided when the first layer asks."""
        self.contract.check_batch(phase, batch, self.features)
        check_lengths(self.contract, batch)
        return self.pieces(batch, bounds) if phase == "decode" else self.tiles(batch)

    def refresh(self, plan: object, batch: PagedBatch) -> None:
        """Of decode: another batch within the bounds is cut by its own lengths, on the device.

        Raises:
            ArgumentError: The plan is another phase's, or has no bounds.
        """
        if not isinstance(plan, DecodePlan):
            raise foreign("plan", plan)
        plan.refresh(batch)

    @abstractmethod
    def prepare(
        self, call: CallT, batch: PagedBatch, plan: Any
    ) -> tuple[Tensors, Options, Callable[[], None]]:
        """What a call's launches follow from besides the call and its batch, and what launches."""

    def run(self, call: CallT, batch: PagedBatch, plan: Any) -> None:
        """Attends T packed query rows of N sequences of any length; in decode one a sequence."""
        brought: Tensors = (*call[1:], batch.cu_seqlens, batch.page_table, batch.kv_lens)
        count = (len(batch.seqlens),)
        known = plan.known(call, batch) if plan.__class__ is self.pieces else None
        if known is not None:
            planned, cut = known
            if calls_of(call[0], type(self)).again(brought + planned, count + cut):
                return
        self.contract.check_call(call, batch, self.features)
        check_plan(plan, batch, (self.pieces, self.tiles))
        *_, out, _ = call
        if out.numel() == 0:
            return
        planned, cut, launch = self.prepare(call, batch, plan)
        tensors, options = brought + planned, count + cut
        calls = calls_of(call[0], type(self))
        if known is None and calls.again(tensors, options):  # a prefill, or a new step's first layer
            return
        with calls.record(call[0], tensors, options):
            launch()


__all__ = ["TritonPaged"]
