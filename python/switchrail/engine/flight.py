"""A launched step whose tokens the host has not read yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from switchrail.engine.task import Task

Spare = dict[int, list[tuple[torch.Tensor, torch.Event]]]
"""Pinned tensors that no copy uses, by their number of elements, each with an event for its next copy."""


class Sent:
    """Token ids that are being copied to the host."""

    def __init__(self, tokens: torch.Tensor, spare: Spare | None) -> None:
        """Start the copy; doesn't wait until it is complete.

        Args:
            tokens: [R] int64, which the next step may overwrite.
            spare: Provides pinned memory, which `read` gives back; None if the device doesn't copy
                asynchronously.
        """
        self._spare = spare
        self._tokens: list[int] | None = None
        if spare is None:
            self._host = tokens.clone()
            return
        free = spare[len(tokens)]
        self._host, self._event = (
            free.pop()
            if free
            else (torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True), torch.Event(tokens.device))
        )
        self._host.copy_(tokens, non_blocking=True)
        self._event.record()

    def read(self) -> list[int]:
        """Wait for the step to finish, even if it has no tokens; return the tokens."""
        if self._tokens is None:
            if self._spare is not None:
                self._event.synchronize()
            self._tokens = self._host.tolist()
            if self._spare is not None:
                self._spare[len(self._host)].append((self._host, self._event))
        return self._tokens


@dataclass(frozen=True, slots=True)
class Verification:
    """A task whose drafts a step verifies.

    Attributes:
        task: The task.
        length: The task's length before the step.
        number: The number of tokens generated before the step.
        drafts: The number of the task's drafts.
        state: The state of the task's random number generator before the step. After the step the generator
            returns to this state, and advances by one number for each new token. None if the generator keeps
            the state that the step leaves: for greedy tasks, for tasks without drafts, and if the drafts were
            drawn from distributions.
    """

    task: Task
    length: int
    number: int
    drafts: int
    state: Any


@dataclass(frozen=True, slots=True)
class Flight:
    """A launched step.

    Attributes:
        tasks: The step's tasks.
        verified: The tasks whose drafts the step verifies.
        ready: The other tasks that get a token, each with its number of earlier tokens.
        tokens: For each verified task the number of accepted drafts, then its new tokens, padded to the
            largest number of tokens that a task can get. The tokens of `ready` follow, in order. A token is
            -1 if its logits were not finite.
        has_prompts: Whether the step runs prompt tokens.
        launched: The time of the launch, from `time.perf_counter`.
    """

    tasks: Sequence[Task]
    verified: Sequence[Verification]
    ready: Sequence[tuple[Task, int]]
    tokens: Sent
    has_prompts: bool
    launched: float

    def read(self) -> tuple[list[list[int]], list[int]]:
        """Wait for the step to finish; return the new tokens of each verified task, and the other tokens."""
        tokens = self.tokens.read()
        count, others = len(self.verified), len(self.ready)
        width = (len(tokens) - others) // count if count else 0
        rows = [tokens[i * width : (i + 1) * width] for i in range(count)]
        return [row[1 : 2 + row[0]] for row in rows], tokens[len(tokens) - others :]

    @property
    def is_wanted(self) -> bool:
        """Whether any task of the step is still active."""
        return any(task.finish_reason is None for task in self.tasks)
