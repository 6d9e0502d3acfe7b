"""The plan of a decode over a paged cache, for one batch or for all batches within bounds."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

from switchrail.ops.batch import Bounds, PagedBatch
from switchrail.ops.call import CallT
from switchrail.ops.contract import Contract
from switchrail.ops.pages import check_pages

from switchrail_kernels.paged import PagedPlan

SplitT = TypeVar("SplitT")


class DecodePlan(PagedPlan, Generic[CallT, SplitT]):
    """A plan that splits caches by their lengths or, with bounds, by the maximum length.

    A plan with bounds does not depend on the lengths of one step. So it serves all replays of a captured
    graph, which reads lengths from the batch's tensors.

    Args:
        batch: A batch that has passed the contract's check.
        bounds: The bounds passed to `plan`.

    Attributes:
        contract: The op's contract.
        splits: How caches are split, by `key`.
        bounds: The bounds.
        lengths: The lengths that splits are based on: those of the caches or, with bounds, the maximum length
            for each cache.

    Raises:
        ContractError: The batch is not within the bounds.
    """

    contract: ClassVar[Contract]

    def __init__(self, batch: PagedBatch, bounds: Bounds | None) -> None:
        super().__init__(batch)
        self._pages: set[int] = set()
        self.splits: dict[tuple[Any, ...], SplitT] = {}
        self.bounds = bounds
        self.lengths = batch.kv_seqlens
        if bounds is not None:
            self._check_within(batch, bounds)
            self.lengths = (bounds.tokens,) * bounds.sequences

    @staticmethod
    @abstractmethod
    def key(call: CallT) -> tuple[Any, ...]:
        """The values that determine how a call's caches are split; the first is the cache's shape."""

    @abstractmethod
    def decide(self, call: CallT, programs: int) -> SplitT:
        """Decide how to split the caches for a call; see `split`."""

    def split(self, call: CallT, programs: int) -> SplitT:
        """How a call's caches are split, decided at the first call with the same key.

        Args:
            call: The call.
            programs: The number of programs for each piece of a sequence's cache.

        Raises:
            ContractError: The page table has too few columns for a sequence.
        """
        key = self.key(call)
        if key not in self.splits:
            page = key[0][1]
            check_pages(self.contract, self.batch, page)
            self._pages.add(page)
            self.splits[key] = self.decide(call, programs)
        return self.splits[key]

    def check_refresh(self, batch: PagedBatch) -> None:
        """Check that the plan can be reused for another batch. Nothing needs to be updated on the device.

        Raises:
            ContractError: The plan has no bounds, the batch is not within them, or its page table has too few
                columns.
        """
        if self.bounds is None:
            raise self.contract.error("plan", "a plan without bounds", "a plan with bounds")
        self._check_within(batch, self.bounds)
        for page in self._pages:
            check_pages(self.contract, batch, page)

    def _check_within(self, batch: PagedBatch, bounds: Bounds) -> None:
        count, longest = len(batch.seqlens), max(batch.kv_seqlens, default=0)
        if count != bounds.sequences:
            raise self.contract.error(
                "batch.seqlens", f"{count} sequences", f"{bounds.sequences}, the plan's bound"
            )
        if longest > bounds.tokens:
            raise self.contract.error(
                "batch.kv_seqlens", f"{longest} tokens", f"at most {bounds.tokens}, the plan's bound"
            )
