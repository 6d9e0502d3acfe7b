"""Drafts: tokens that are proposed for a model to verify."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from switchrail.engine.task import Task
from switchrail.errors import EngineError

if TYPE_CHECKING:
    import torch


NONE: Final = -2
"""The entry of a padding row in a table of parents."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """The tokens proposed for N sequences.

    Attributes:
        tokens: The drafted tokens of each sequence, possibly none: numbers, or a tensor [d] int64 on the
            model's device, whose values are not checked. The tokens form a chain after the newest token, or
            with `parents` a tree.
        probabilities: [D, vocabulary] float64, one row for each of the D drafted tokens of all sequences, in
            order: the distribution that the token was drawn from; in a tree, the distribution that remained
            after its earlier siblings (tokens with the same parent) were drawn. None if the tokens were not
            drawn: each was proposed with probability 1. Greedy requests ignore this.
        parents: For each drafted token of a tree, the index of the drafted token that it follows, which comes
            before it in `tokens`; -1 if it follows the newest token. Siblings are different tokens. None for
            chains.
        table: [N, X] int64 on the model's device: each sequence's `tokens`, then undefined ones; X is the
            engine's `draft_tokens`. None if there is no such table.
    """

    tokens: Sequence[Sequence[int] | torch.Tensor]
    probabilities: torch.Tensor | None = None
    parents: Sequence[Sequence[int]] | None = None
    table: torch.Tensor | None = None

    def parent_rows(self, number: int) -> Sequence[int]:
        """For each draft of a sequence, the row that it follows; row 0 is the newest token."""
        if self.parents is None:
            return range(len(self.tokens[number]))
        return [parent + 1 for parent in self.parents[number]]

    def depths(self, number: int) -> list[int]:
        """The depth of each row of a sequence in the tree; 0 for the newest token."""
        found = [0]
        for parent in self.parent_rows(number):
            found.append(found[parent] + 1)
        return found


@dataclass(frozen=True, slots=True)
class Verified:
    """The tokens that a captured verification accepts, on the device.

    Attributes:
        rows: [3, sequences] int64: each sequence's length before the step, its slot, and its number of pages;
            slot -1 for padding.
        before: [sequences] int64, the newest token before the step.
        news: [sequences, 2 + draft_tokens] int64, for each sequence the number of accepted drafts, these
            drafts, and the token after them. The remaining elements of a row are undefined.
    """

    rows: torch.Tensor
    before: torch.Tensor
    news: torch.Tensor


class Drafts(ABC):
    """Proposes the next tokens of sequences. The model verifies all of them in one step.

    Proposals don't change the distribution of outputs, but each accepted token saves a step.

    Attributes:
        are_trees: Whether proposals may have `parents`. If so, the engine chooses only verification backends
            with the feature `trees` for ops with paged caches.
        ahead: The data that a page has for a token may depend on this many later tokens. So samples of one
            prompt share no page that has any of the prompt's last `ahead` tokens.
    """

    are_trees: ClassVar[bool] = False
    ahead: int = 0

    def look_ahead(self, tasks: Sequence[Task], verified: Verified) -> None:  # noqa: B027
        """Begin the next proposal once a verification is launched, before the host knows its tokens.

        Args:
            tasks: N tasks, all of them greedy.
            verified: The verified tokens of these tasks, in the same tensors in all calls.
        """

    @abstractmethod
    def propose(self, tasks: Sequence[Task], limits: Sequence[int]) -> Drafted:
        """Propose tokens. An exception ends the requests of the step.

        Args:
            tasks: N tasks, each with its prompt (`ids`) and the `tokens` after it.
            limits: The maximum number of tokens for each task, possibly 0.
        """


def proposed(
    drafts: Drafts, tasks: Sequence[Task], limits: Sequence[int], *, most: int, vocab_size: int
) -> Drafted:
    """Ask for a proposal and check it.

    Raises:
        EngineError: The proposal is for a wrong number of sequences, has too many or invalid tokens, has
            invalid parents, or has tensors of wrong shapes.
    """
    import torch

    found = drafts.propose(tasks, limits)
    name = type(drafts).__name__
    if not isinstance(found, Drafted) or len(found.tokens) != len(tasks):
        raise EngineError(
            f"{name} proposed {found!r:.80}, expected a Drafted with tokens for {len(tasks)} sequences"
        )
    for tokens, limit in zip(found.tokens, limits, strict=True):
        is_known = not isinstance(tokens, torch.Tensor)
        if len(tokens) > limit or (is_known and not all(0 <= token < vocab_size for token in tokens)):
            raise EngineError(
                f"{name} proposed {list(tokens)!r:.80}, expected at most {limit} tokens from 0 to "
                f"{vocab_size - 1}"
            )
    if found.parents is not None:
        _check_trees(name, drafts, found)
    shape = sum(map(len, found.tokens)), vocab_size
    if found.probabilities is not None and found.probabilities.shape != shape:
        raise EngineError(
            f"{name} proposed probabilities of shape {tuple(found.probabilities.shape)}, expected {shape}"
        )
    if found.table is not None and found.table.shape != (len(tasks), most):
        raise EngineError(
            f"{name} proposed a table of shape {tuple(found.table.shape)}, expected {(len(tasks), most)}"
        )
    return found


def _check_trees(name: str, drafts: Drafts, found: Drafted) -> None:
    import torch

    assert found.parents is not None
    if not drafts.are_trees:
        raise EngineError(f"{name} proposed parents; valid: None, unless its `are_trees` is True")
    if len(found.parents) != len(found.tokens):
        raise EngineError(
            f"{name} proposed parents for {len(found.parents)} sequences, expected {len(found.tokens)}"
        )
    for tokens, parents in zip(found.tokens, found.parents, strict=True):
        if len(parents) != len(tokens) or not all(-1 <= parent < i for i, parent in enumerate(parents)):
            raise EngineError(
                f"{name} proposed the parents {list(parents)!r:.80} for {len(tokens)} tokens, expected "
                "the index of an earlier token, or -1, for each token"
            )
        is_known = not isinstance(tokens, torch.Tensor)
        if is_known and len({*zip(parents, tokens, strict=True)}) < len(tokens):
            raise EngineError(
                f"{name} proposed {list(tokens)!r:.80} in which two tokens with the same parent are equal; "
                "expected different tokens for each parent"
            )
