"""What the plans of a decode over a paged cache share: one batch, or within bounds any."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from switchrail.ops.batch import Bounds, PagedBatch
from switchrail.ops.call import CallT
from switchrail.ops.contract import Contract
from switchrail.ops.pages import check_pages

from switchrail_kernels.replay import Options, Tensors


class Cut(Protocol):
    """How the caches are cut for some layers."""

    @property
    def tensors(self) -> Tensors:
        """Tensors that the launches follow from."""

    @property
    def options(self) -> Options:
        """Numbers that the launches follow from."""


CutT = TypeVar("CutT", bound=Cut)


class DecodePlan(Generic[CallT, CutT]):
    """A plan whose caches are cut by their lengths or, within bounds, as if all were as long as may be.

    So nothing that a plan within bounds makes follows from the lengths of one step, and what a captured graph
    reads of them lies in the batch's own tensors.

    Args:
        batch: A batch that was checked.
        bounds: As `plan` was given them.

    Attributes:
        contract: The op's contract.
        cuts: By what they follow from.
        bounds: The bounds.
        lengths: Of the caches, such as they are cut by.
        seqlens: The batch's.

    Raises:
        ContractError: The batch is not within the bounds.
    """

    contract: ClassVar[Contract]

    def __init__(self, batch: PagedBatch, bounds: Bounds | None) -> None:
        self._batch = batch
        self._pages: set[int] = set()
        self.cuts: dict[tuple[Any, ...], CutT] = {}
        self._known: dict[tuple[Any, ...], tuple[Tensors, Options]] = {}
        self.bounds = bounds
        self.seqlens = batch.seqlens
        self.lengths = batch.kv_seqlens
        if bounds is not None:
            self._check_within(batch, bounds)
            self.lengths = (bounds.tokens,) * bounds.sequences

    @staticmethod
    @abstractmethod
    def key(call: CallT) -> tuple[Any, ...]:
        """What a call's cut follows from; first the shape of its cache."""

    @abstractmethod
    def decide(self, call: CallT, programs: int) -> CutT:
        """Cuts the caches for a call; see `cut`."""

    def known(self, call: CallT, batch: PagedBatch) -> tuple[Tensors, Options] | None:
        """Tensors and options of an earlier call's cut, where it was like this one; validates nothing."""
        if batch.seqlens is not self.seqlens and batch.seqlens != self.seqlens:
            return None
        try:
            return self._known.get(self.key(call))
        except (AttributeError, TypeError):
            return None

    def cut(self, call: CallT, programs: int) -> CutT:
        """The cut for a call, decided at the first one like it.

        Args:
            call: The call.
            programs: Programs a sequence and piece.

        Raises:
            ContractError: The page table has no room for a sequence.
        """
        key = self.key(call)
        if key not in self.cuts:
            page = key[0][1]
            check_pages(self.contract, self._batch, page)
            self._pages.add(page)
            cut = self.cuts[key] = self.decide(call, programs)
            self._known[key] = cut.tensors, cut.options
        return self.cuts[key]

    def refresh(self, batch: PagedBatch) -> None:
        """Makes the plan one for another batch, for which nothing has to be filled.

        Raises:
            ContractError: The plan has no bounds, or the batch is not within them.
        """
        if self.bounds is None:
            raise self.contract.error("plan", "one that was made without bounds", "one that has bounds")
        self.contract.check_batch("decode", batch)
        self._check_within(batch, self.bounds)
        for page in self._pages:
            check_pages(self.contract, batch, page)
        self._batch, self.seqlens = batch, batch.seqlens

    def _check_within(self, batch: PagedBatch, bounds: Bounds) -> None:
        count, longest = len(batch.seqlens), max(batch.kv_seqlens, default=0)
        if count != bounds.sequences:
            raise self.contract.error(
                "batch.seqlens", f"{count} sequences", f"{bounds.sequences}, as the plan's bounds have"
            )
        if longest > bounds.tokens:
            raise self.contract.error(
                "batch.kv_seqlens", f"{longest} tokens", f"{bounds.tokens} at most, as the plan's bounds have"
            )


__all__ = ["Cut", "DecodePlan"]
