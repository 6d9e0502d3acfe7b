"""Proposes drafts from a sequence's own earlier tokens, without a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from switchrail.engine.drafts import Drafted, Drafts
from switchrail.engine.task import Task

LONGEST = 4
SHORTEST = 2
"""The largest and the smallest number of last tokens that are looked up together."""


class NgramDrafts(Drafts):
    """Looks up the last tokens of a sequence in its earlier tokens, and proposes the tokens that followed.

    The last `LONGEST` tokens are looked up first, then fewer, down to `SHORTEST`. The latest earlier
    occurrence is used. If too few tokens follow that occurrence, the proposal repeats them.
    """

    def propose(self, tasks: Sequence[Task], limits: Sequence[int]) -> Drafted:
        """Propose a continuation of each task."""
        return Drafted(
            [_follow(task, limit) if limit else () for task, limit in zip(tasks, limits, strict=True)]
        )


def _follow(task: Task, count: int) -> list[int]:
    """The `count` proposed tokens; none if the last tokens did not occur before."""
    text = np.concatenate([task.ids, np.array(task.tokens, dtype=np.int64)]).astype(np.int32)
    period = _period(text)
    if period is None:
        return []
    repeated: list[int] = text[len(text) - period :].tolist()
    return [repeated[i % period] for i in range(count)]


def _period(text: np.ndarray[tuple[int], np.dtype[np.int32]]) -> int | None:
    """The distance in tokens to the latest earlier occurrence of the last tokens, or None."""
    earlier = text[:-1].tobytes()
    for length in range(min(LONGEST, len(text) - 1), SHORTEST - 1, -1):
        ending = text[-length:].tobytes()
        place = earlier.rfind(ending)
        while place > 0 and place % text.itemsize:
            place = earlier.rfind(ending, 0, place + len(ending) - 1)
        if place >= 0:
            return len(text) - length - place // text.itemsize
    return None
