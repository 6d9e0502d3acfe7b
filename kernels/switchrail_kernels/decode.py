"""What the plans of a decode over a paged cache share: a batch, or the bounds of many."""

from __future__ import annotations

from dataclasses import replace

from switchrail.ops.batch import Bounds, PagedBatch
from switchrail.ops.contract import Contract


class DecodePlan:
    """How caches are cut is decided by their lengths, or, within bounds, as if all were as long as may be.

    So nothing of a plan within bounds follows from the lengths of one step, and what a captured graph reads
    of them lies in the batch's own tensors.

    Args:
        contract: The op's contract.
        batch: A batch that was checked.
        bounds: As `plan` was given them.

    Attributes:
        batch: The batch; within bounds with the longest caches.
        bounds: The bounds.

    Raises:
        ContractError: The batch is not within the bounds.
    """

    def __init__(self, contract: Contract, batch: PagedBatch, bounds: Bounds | None) -> None:
        self._contract = contract
        self.bounds = bounds
        if bounds is not None:
            self._check(batch, bounds)
            batch = replace(batch, kv_seqlens=(bounds.tokens,) * bounds.sequences)
        self.batch = batch

    def refresh(self, batch: PagedBatch) -> None:
        """Makes the plan one for another batch, for which nothing has to be filled.

        Raises:
            ContractError: The plan has no bounds, or the batch is not within them.
        """
        if self.bounds is None:
            raise self._contract.error("plan", "one that was made without bounds", "one that has bounds")
        self._contract.check_batch("decode", batch)
        self._check(batch, self.bounds)
        pages, found = self.batch.page_table.shape[1], batch.page_table.shape[1]
        if found < pages:
            raise self._contract.error(
                "batch.page_table", f"{found} pages a sequence", f"{pages} at least, as the plan was made for"
            )

    def _check(self, batch: PagedBatch, bounds: Bounds) -> None:
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
