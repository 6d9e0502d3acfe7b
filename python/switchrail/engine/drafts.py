"""Proposes tokens for a model to verify."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from switchrail.engine.task import Task
from switchrail.errors import EngineError


@dataclass(frozen=True, slots=True)
class Drafted:
    """The proposal for N sequences.

    Attributes:
        tokens: Each sequence's drafted tokens, which follow its newest token; possibly none.
    """

    tokens: Sequence[Sequence[int]]


class Drafts(ABC):
    """Proposes the next tokens of sequences. The model verifies all of them in one step.

    Proposals don't change outputs, but each accepted token saves a step.
    """

    @abstractmethod
    def propose(self, tasks: Sequence[Task], limits: Sequence[int]) -> Drafted:
        """Propose tokens. An exception ends the requests of the step.

        Args:
            tasks: N tasks, each with its prompt (`ids`) and the `tokens` after it.
            limits: The maximum number of tokens for each task, possibly 0.
        """


def proposed(drafts: Drafts, tasks: Sequence[Task], limits: Sequence[int], vocab_size: int) -> Drafted:
    """A proposal that was checked.

    Raises:
        EngineError: The proposal has another number of sequences, too many tokens, or invalid ones.
    """
    found = drafts.propose(tasks, limits)
    name = type(drafts).__name__
    if not isinstance(found, Drafted) or len(found.tokens) != len(tasks):
        raise EngineError(
            f"{name} proposed {found!r:.80}, expected Drafted tokens for {len(tasks)} sequences"
        )
    for tokens, limit in zip(found.tokens, limits, strict=True):
        if len(tokens) > limit or not all(0 <= token < vocab_size for token in tokens):
            raise EngineError(
                f"{name} proposed {list(tokens)!r:.80}, expected at most {limit} tokens from 0 to "
                f"{vocab_size - 1}"
            )
    return found


__all__ = ["Drafted", "Drafts", "proposed"]
