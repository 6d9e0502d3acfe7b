"""The rows of a step that run in one phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from switchrail._core import PAGED_OPS, PHASES
from switchrail.errors import DispatchError, UnknownPhaseError
from switchrail.nearest import unknown
from switchrail.ops.batch import DeferredBatch, PagedBatch, Phase, SequenceBatch, StateBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The consecutive rows of a step that run in one phase.

    Attributes:
        phase: The phase of the rows.
        rows: The range of rows in the step.
        pages: The batch for ops with a paged cache; None if the model has no such op.
        states: The batch for ops with a state; None if the model has no such op.
        deferred: The batch for backends with the feature `deferred_commit`, with the same sequences as
            `states`; None if no commits are deferred.

    Raises:
        UnknownPhaseError: The phase is unknown.
    """

    phase: Phase
    rows: slice
    pages: PagedBatch | None = None
    states: StateBatch | None = None
    deferred: DeferredBatch | None = None

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            problem = f"unknown phase {self.phase!r}"
            raise unknown(UnknownPhaseError, problem, self.phase, PHASES, found=self.phase)

    def batch(self, op: str, *, defers: bool = False) -> SequenceBatch:
        """The batch for an op.

        Args:
            op: The op.
            defers: Whether the op's backend has the feature `deferred_commit`.

        Raises:
            DispatchError: The part has no batch for this op.
        """
        if defers and self.deferred is not None:
            return self.deferred
        kind = "pages" if op in PAGED_OPS else "states"
        batch: SequenceBatch | None = getattr(self, kind)
        if batch is None:
            raise DispatchError(f"the {self.phase} part has no {kind}, which {op} needs", op=op)
        return batch

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of rows of each sequence."""
        batch = self.pages or self.states
        if batch is None:
            raise DispatchError(f"the {self.phase} part has no sequences; give pages, states, or both")
        return batch.seqlens


def check_rows(parts: Sequence[Part]) -> None:
    """Checks that the parts cover the rows of a step in order.

    Raises:
        DispatchError: There is no part; a part's rows don't match its sequences' lengths, or don't follow the
            previous part's rows; or a part's pages and states have different lengths.
    """
    if not parts:
        raise DispatchError("a step needs at least one part")
    end = 0
    for part in parts:
        start, end = end, end + sum(part.lengths)
        if part.rows != slice(start, end):
            raise DispatchError(
                f"the {part.phase} part has rows {part.rows}, expected {slice(start, end)}: its "
                "sequences' rows, after the previous part's"
            )
        if part.pages is not None and part.states is not None and part.pages.seqlens != part.states.seqlens:
            raise DispatchError(
                f"the {part.phase} part has sequences of {part.pages.seqlens} rows in pages, but of "
                f"{part.states.seqlens} in states"
            )
