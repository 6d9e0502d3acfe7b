"""What the plans of a decode over a paged cache share: one batch, or within bounds any."""

from __future__ import annotations

from switchrail.ops.batch import Bounds, PagedBatch
from switchrail.ops.contract import Contract
from switchrail.ops.pages import check_pages


class DecodePlan:
    """A plan whose caches are cut by their lengths or, within bounds, as if all were as long as may be.

    So nothing that a plan within bounds makes follows from the lengths of one step, and what a captured graph
    reads of them lies in the batch's own tensors.

    Args:
        contract: The op's contract.
        batch: A batch that was checked.
        bounds: As `plan` was given them.

    Attributes:
        bounds: The bounds.
        lengths: Of the caches, such as they are cut by.
        seqlens: The batch's.

    Raises:
        ContractError: The batch is not within the bounds.
    """

    def __init__(self, contract: Contract, batch: PagedBatch, bounds: Bounds | None) -> None:
        self._contract = contract
        self._batch = batch
        self._pages: set[int] = set()
        self.bounds = bounds
        self.seqlens = batch.seqlens
        self.lengths = batch.kv_seqlens
        if bounds is not None:
            self._check_within(batch, bounds)
            self.lengths = (bounds.tokens,) * bounds.sequences

    def check_pages(self, page: int) -> None:
        """Checks that the batch's table has room for its sequences, in pages of `page` tokens.

        Raises:
            ContractError: It has not.
        """
        check_pages(self._contract, self._batch, page)
        self._pages.add(page)

    def refresh(self, batch: PagedBatch) -> None:
        """Makes the plan one for another batch, for which nothing has to be filled.

        Raises:
            ContractError: The plan has no bounds, or the batch is not within them.
        """
        if self.bounds is None:
            raise self._contract.error("plan", "one that was made without bounds", "one that has bounds")
        self._contract.check_batch("decode", batch)
        self._check_within(batch, self.bounds)
        for page in self._pages:
            check_pages(self._contract, batch, page)
        self._batch, self.seqlens = batch, batch.seqlens

    def _check_within(self, batch: PagedBatch, bounds: Bounds) -> None:
        count, longest = len(batch.seqlens), max(batch.kv_seqlens, default=0)
        if count != bounds.sequences:
            raise self._contract.error(
                "batch.seqlens", f"{count} sequences", f"{bounds.sequences}, as the plan's bounds have"
            )
        if longest > bounds.tokens:
            raise self._contract.error(
                "batch.kv_seqlens", f"{longest} tokens", f"{bounds.tokens} at most, as the plan's bounds have"
            )


__all__ = ["DecodePlan"]
