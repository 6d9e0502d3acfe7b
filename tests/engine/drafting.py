"""Drafts that know the expected output, and so determine how many drafted tokens are accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from random import Random

from switchrail.engine import Engine, Output
from switchrail.engine.drafts import Drafted, Drafts
from switchrail.engine.task import Task

Forced = Callable[[Random, int], int]
"""Maps a random source and a number of drafted tokens to the number of right ones among them."""

FORCED: dict[str, Forced] = {
    "none": lambda draw, count: 0,
    "all": lambda draw, count: count,
    "random": lambda draw, count: draw.randint(0, count),
}


class Oracle(Drafts):
    """Proposes as many right tokens as `forced` says, then wrong ones.

    Attributes:
        steps: The numbers of right and of drafted tokens of each proposal.
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
            assert due is None or len(task.tokens) == due, "unexpected number of accepted tokens"
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


class Trees(Oracle):
    """Proposes trees. Their accepted paths are forced in the same way; tokens off these paths are wrong."""

    are_trees = True

    def propose(self, tasks: Sequence[Task], limits: Sequence[int]) -> Drafted:
        found, trees = [], []
        for task, limit in zip(tasks, limits, strict=True):
            due = self._due.pop(task, None)
            assert due is None or len(task.tokens) == due, "unexpected number of accepted tokens"
            after = self._right(task)[len(task.tokens) :]
            count = self._draw.randint(0, limit) if self._ragged else limit
            right = min(self._forced(self._draw, count), len(after))
            nodes = sorted(self._draw.sample(range(count), right))  # the nodes of the accepted path
            tokens, parents = list[int](), list[int]()
            for node in range(count):
                if node in nodes:
                    place = nodes.index(node)
                    parents.append(nodes[place - 1] if place else -1)
                    tokens.append(after[place])
                    continue
                parent = self._draw.randint(-1, node - 1)
                place = 0 if parent < 0 else nodes.index(parent) + 1 if parent in nodes else len(after)
                taken = {token for token, one in zip(tokens, parents, strict=True) if one == parent}
                wrong = taken | {*after[place : place + 1]}
                parents.append(parent)
                tokens.append(next(token for token in range(self._vocab_size) if token not in wrong))
            found.append(tokens)
            trees.append(parents)
            self._due[task] = len(task.tokens) + right + 1
            if count:
                self.steps.append((right, count))
        return Drafted(found, parents=trees)


def use(engine: Engine, drafts: Drafts) -> Drafts:
    """Replace the drafts of an engine that was created with drafts."""
    engine._core.drafts = drafts
    return drafts


@contextmanager
def using(engine: Engine, drafts: Drafts) -> Iterator[None]:
    """Replace the drafts of an engine within this context."""
    own = engine._core.drafts
    try:
        use(engine, drafts)
        yield
    finally:
        engine._core.drafts = own
