"""The rows of a step that run in one phase."""

from __future__ import annotations

from dataclasses import dataclass

from switchrail._core import PAGED_OPS
from switchrail.errors import DispatchError
from switchrail.ops.batch import PagedBatch, Phase, SequenceBatch, StateBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The rows of a step that run in one phase, next to one another.

    Attributes:
        phase: Theirs.
        rows: Which rows of the step.
        pages: The sequences as ops with a paged cache see them; None where the model has no such op.
        states: The sequences as ops with a state see them; None likewise.
    """

    phase: Phase
    rows: slice
    pages: PagedBatch | None = None
    states: StateBatch | None = None

    def batch(self, op: str) -> SequenceBatch:
        """The sequences as an op sees them.

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


__all__ = ["Part"]
