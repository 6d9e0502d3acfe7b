"""The rows of a step that run in one phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from switchrail._core import PAGED_OPS
from switchrail.errors import DispatchError
from switchrail.ops.batch import PagedBatch, Phase, SequenceBatch, StateBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The consecutive rows of a step that run in one phase.

    Attributes:
        phase: The phase of the rows.
        rows: The range of rows in the step.
        pages: The sequences for ops with a paged cache; None if the model has no such op.
        states: The sequences for ops with a state; None if the model has no such op.
    """

    phase: Phase
    rows: slice
    pages: PagedBatch | None = None
    states: StateBatch | None = None

    def batch(self, op: str) -> SequenceBatch:
        """The sequences in the form that an op takes.

        Raises:
            DispatchError: The part has no such batch.
        """
        kind = "pages" if op in PAGED_OPS else "states"
        batch: SequenceBatch | None = getattr(self, kind)
        if batch is None:
            raise DispatchError(f"the part of {self.phase} has no {kind}, which {op} takes", op=op)
        return batch

    @property
    def lengths(self) -> tuple[int, ...]:
        """The rows of each sequence."""
        batch = self.pages or self.states
        if batch is None:
            raise DispatchError(f"the part of {self.phase} has no sequences; give pages, states, or both")
        return batch.seqlens


def check_rows(parts: Sequence[Part]) -> None:
    """Checks that the parts cover the rows of a step in order.

    Raises:
        DispatchError: There is no part, a part's rows don't match its sequences' lengths or don't follow the
            previous part's, or a part's pages and states have other lengths.
    """
    if not parts:
        raise DispatchError("a step has one part at least")
    end = 0
    for part in parts:
        start, end = end, end + sum(part.lengths)
        if part.rows != slice(start, end):
            raise DispatchError(
                f"the part of {part.phase} has {part.rows}, expected {slice(start, end)}, the rows of its "
                "sequences behind those of the parts before it"
            )
        if part.pages is not None and part.states is not None and part.pages.seqlens != part.states.seqlens:
            raise DispatchError(
                f"the part of {part.phase} has pages of sequences of {part.pages.seqlens} rows, and states "
                f"of sequences of {part.states.seqlens}"
            )


__all__ = ["Part", "check_rows"]
