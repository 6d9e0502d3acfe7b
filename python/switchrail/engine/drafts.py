"""Proposes tokens for a model to verify."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from switchrail.engine.task import Task
from switchrail.errors import EngineError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Drafted:
    """The proposal for N sequences.

    Attributes:
        tokens: Each sequence's drafted tokens, which follow its newest token; possibly none.
        probabilities: [D, vocabulary] float64, for each drafted token the distribution that it was drawn
            from, of one sequence after the other. None if the tokens were not drawn: each then counts as
            proposed with probability 1. Greedy requests ignore it.
    """

    tokens: Sequence[Sequence[int]]
    probabilities: torch.Tensor | None = None


class Drafts(ABC):
    """Proposes the next tokens of sequences. The model verifies all of them in one step.

    Proposals don't change the distribution of outputs, but each accepted token saves a step.
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
    shape = sum(map(len, found.tokens)), vocab_size
    if found.probabilities is not None and found.probabilities.shape != shape:
        raise EngineError(
            f"{name} proposed probabilities of shape {tuple(found.probabilities.shape)}, expected {shape}"
        )
    return found


__all__ = ["Drafted", "Drafts", "proposed"]
