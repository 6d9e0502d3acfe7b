"""Drafts that know the expected output, and so determine how many drafted tokens are accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random

from switchrail.engine import Engine, Output
from switchrail.engine.drafts import Drafted, Drafts
from switchrail.engine.task import Task

Forced = Callable[[Random, int], int]
"""Maps a number of drafted tokens to the number of right ones among them."""

FORCED: dict[str, Forced] = {
    "none": lambda draw, count: 0,
    "all": lambda draw, count: count,
    "random": lambda draw, count: draw.randint(0, count),
}


class Oracle(Drafts):
    """Proposes right tokens, then wrong ones.

    Attributes:
        steps: The accepted tokens of each verification.
        most: Whether to draft as many tokens as allowed; if not, the number is random.
    """

    def __init__(
        self, outputs: Iterable[Output], forced: Forced, *, ragged: bool = True, vocab_size: int = 256
    ) -> None:
        self._tokens: dict[tuple[tuple[int, ...], int | None], tuple[int, ...]] = {}
        self._add(outputs)
        self._forced = forced
        self._ragged = ragged
        self._vocab_size = vocab_size
        self._draw = Random(5)
        self._due: dict[Task, int] = {}
        self.steps: list[tuple[int, int]] = []

    def _add(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            self._tokens.setdefault((output.prompt_tokens, None), output.tokens)

    def expect(self, seed: int | None, output: Output) -> None:
        self._tokens[output.prompt_tokens, seed] = output.tokens

    def _right(self, task: Task) -> tuple[int, ...]:
        prompt = tuple(task.ids.tolist())
        return self._tokens.get((prompt, task.params.seed)) or self._tokens[prompt, None]

    def propose(self, tasks: Sequence[Task], limits: Sequence[int]) -> Drafted:
        found = []
        for task, limit in zip(tasks, limits, strict=True):
            due = self._due.pop(task, None)
            assert due is None or len(task.tokens) == due, "another number of drafts was accepted"
            after = self._right(task)[len(task.tokens) :]
            count = self._draw.randint(0, limit) if self._ragged else limit
            right = self._forced(self._draw, count)
            if right == count:
                right = count = min(count, len(after))
            right = min(right, len(after))
            wrong = [(token + 1) % self._vocab_size for token in (*after, *[0] * count)[right:count]]
            found.append([*after[:right], *wrong])
            self._due[task] = len(task.tokens) + right + 1
            if count:
                self.steps.append((right, count))
        return Drafted(found)


def use(engine: Engine, drafts: Drafts) -> Drafts:
    """Replace the drafts of an engine that was created with drafts."""
    engine._core.drafts = drafts
    return drafts
