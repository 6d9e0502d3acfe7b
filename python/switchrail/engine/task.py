"""A task of the engine's core: the tokens of a prompt, and the tokens generated after them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from switchrail.engine.sequence import Sequence
from switchrail.params import SamplingParams

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(eq=False, slots=True, kw_only=True)
class Task(Sequence):
    """A prompt as token ids, and the tokens generated after the prompt.

    Attributes:
        ids: [T] the prompt's token ids.
        params: The task's sampling parameters and end conditions.
        end_tokens: Token ids that end the task.
        draws: The task's source of random numbers.
        needed_pages: Maximum number of pages that the task can need.
        group: A number that the samples of one prompt share; None if the prompt has only one sample.
        tokens: The token ids generated so far.
        finish_reason: Why the task ended; None while it waits or runs.
        error: The exception, if `finish_reason` is `error`.
        step_failed: Whether the task ended because a step failed.
    """

    ids: npt.NDArray[np.int64]
    params: SamplingParams
    end_tokens: frozenset[int]
    draws: random.Random
    needed_pages: int
    group: int | None = None
    tokens: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: BaseException | None = None
    step_failed: bool = False

    def accept(self, token: int) -> None:
        """Add a new token, and end the task if the token is its last one."""
        if token in self.end_tokens:
            self.note(token, "stop")
        else:
            last = len(self.tokens) + 1 == self.params.max_new_tokens
            self.note(token, "length" if last else None)

    def note(
        self, token: int | None, reason: FinishReason | None, error: BaseException | None = None
    ) -> None:
        """Record a new token, the end of the task, or both."""
        if token is not None:
            self.tokens += (token,)
        self.error, self.finish_reason = error, reason
