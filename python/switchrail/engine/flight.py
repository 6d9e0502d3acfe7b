"""A step that was launched, and whose tokens the host has not read yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from switchrail.engine.task import Task


class Sent:
    """Token ids on their way to the host."""

    def __init__(self, tokens: torch.Tensor, pin_memory: bool) -> None:
        """Sends them, without waiting.

        Args:
            tokens: [R] int64.
            pin_memory: Whether the device copies to pinned memory by itself.
        """
        self._event: torch.Event | None = None
        self._host = tokens
        if pin_memory:
            self._host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
            self._host.copy_(tokens, non_blocking=True)
            self._event = torch.Event(tokens.device)
            self._event.record()

    def read(self) -> list[int]:
        """Waits for them, and so for the step; where there are none too."""
        if self._event is not None:
            self._event.synchronize()
        return self._host.tolist()


@dataclass(frozen=True, slots=True)
class Flight:
    """A step that was launched.

    Attributes:
        tasks: Its tasks.
        ready: Those that get a token, and how many they have before it.
        tokens: The tokens, as `ready` is ordered; -1 where there is none.
        has_prompts: Whether it runs prompt tokens.
        launched: When it was launched, as `time.perf_counter` has it.
    """

    tasks: Sequence[Task]
    ready: Sequence[tuple[Task, int]]
    tokens: Sent
    has_prompts: bool
    launched: float

    @property
    def is_wanted(self) -> bool:
        """Whether any of its tasks goes on."""
        return any(task.finish_reason is None for task in self.tasks)


__all__ = ["Flight", "Sent"]
