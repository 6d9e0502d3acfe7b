"""A launched step whose tokens the host has not read yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from switchrail.engine.task import Task


class Sent:
    """Token ids that are being copied to the host."""

    def __init__(self, tokens: torch.Tensor, pin_memory: bool) -> None:
        """Start the copy without waiting for it.

        Args:
            tokens: [R] int64.
            pin_memory: Whether the device copies asynchronously to pinned memory.
        """
        self._event: torch.Event | None = None
        self._host = tokens
        if pin_memory:
            self._host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
            self._host.copy_(tokens, non_blocking=True)
            self._event = torch.Event(tokens.device)
            self._event.record()

    def read(self) -> list[int]:
        """Wait for the step to finish, even if it has no tokens; return the tokens."""
        if self._event is not None:
            self._event.synchronize()
        return self._host.tolist()


@dataclass(frozen=True, slots=True)
class Flight:
    """A launched step.

    Attributes:
        tasks: The step's tasks.
        ready: Pairs of a task that gets a token and its number of earlier tokens. With accepted drafts a task
            occurs several times.
        tokens: The tokens in the order of `ready`; -1 where the logits were not finite.
        has_prompts: Whether it runs prompt tokens.
        launched: The time of the launch, from `time.perf_counter`.
    """

    tasks: Sequence[Task]
    ready: Sequence[tuple[Task, int]]
    tokens: Sent
    has_prompts: bool
    launched: float

    @property
    def is_wanted(self) -> bool:
        """Whether any task of the step is still active."""
        return any(task.finish_reason is None for task in self.tasks)


__all__ = ["Flight", "Sent"]
