"""Decodes that were captured, each for so many sequences and caches of so many tokens."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch

from switchrail._core import BoundPlan
from switchrail.dispatch import Dispatcher, Prepared
from switchrail.engine.inputs import DecodeInputs
from switchrail.engine.step import Step
from switchrail.engine.task import Task
from switchrail.engine.watch import HookWatch
from switchrail.ops.batch import Bounds
from switchrail.platforms.graph import Graph

_log = logging.getLogger("switchrail")

_SHORTEST: Final = 1024
"""Tokens of the first class of caches; the next ones are four times as long each."""

_FEW: Final = (1, 2, 4)
_STEP: Final = 8


class Key(NamedTuple):
    """What a decode was captured for.

    Attributes:
        sequences: Rows, padding included.
        tokens: Tokens of the longest cache.
    """

    sequences: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphState:
    """What became of a key.

    Attributes:
        sequences: Rows, padding included.
        tokens: Tokens of the longest cache.
        backends: Which backends serve it, by op and phase; empty where nothing is captured.
        reason: Why nothing is, so that such decodes run eagerly; None where something is, or will be when it
            is needed.
    """

    sequences: int
    tokens: int
    backends: Mapping[str, str]
    reason: str | None


@dataclass(frozen=True, slots=True)
class Captured:
    """A decode that was captured.

    Attributes:
        graph: What launches it.
        step: What it reads.
        prepared: The backends' plans, refreshed for each step.
    """

    graph: Graph
    step: Step
    prepared: Prepared


def sizes(most: int) -> tuple[int, ...]:
    """The numbers of sequences that are captured: few, then by quarters of the power of two below them."""
    found = [size for size in _FEW if size < most]
    size = _STEP
    while size < most:
        found.append(size)
        size += max(_STEP, 2 ** (size.bit_length() - 1) // 4)
    return (*found, most)


def lengths(most: int) -> tuple[int, ...]:
    """The lengths of caches that are captured."""
    found = []
    length = _SHORTEST
    while length < most:
        found.append(length)
        length *= 4
    return (*found, most)


class Graphs:
    """The captured decodes of a model; a step that none of them serves runs eagerly.

    Attributes:
        keys: All keys, in the order of `sequences`, then `tokens`.
        captured: The decode of each key that could be captured.
        refused: Why the others could not.
    """

    def __init__(
        self,
        forward: Callable[[Step, Prepared], torch.Tensor],
        dispatcher: Dispatcher,
        bound: BoundPlan,
        inputs: DecodeInputs,
        *,
        sequences: int,
        tokens: int,
        graph_class: type[Graph],
        watch: HookWatch,
    ) -> None:
        """Captures nothing yet.

        Args:
            forward: Runs a step: [R, vocabulary].
            dispatcher: Where the model's layers reach their backends.
            bound: The routes of captured decodes.
            inputs: What they read.
            sequences: Sequences that run at one time, at most.
            tokens: Tokens of the longest sequence.
            graph_class: What captures.
            watch: Tells when hooks have changed.
        """
        self._forward = forward
        self._dispatcher = dispatcher
        self._bound = bound
        self._inputs = inputs
        self._graph_class = graph_class
        self._watch = watch
        self._sizes, self._lengths = sizes(sequences), lengths(tokens)
        self._logits: torch.Tensor | None = None
        self._shares: Graph | None = None  # the last one, if its capture didn't fail
        self.keys = [Key(size, length) for size in self._sizes for length in self._lengths]
        self.captured: dict[Key, Captured] = {}
        self.refused: dict[Key, str] = {}

    def capture(self) -> None:
        """Captures all keys, the largest first, whose working memory the others then share."""
        self._drop()
        for key in reversed(self.keys):
            self._try(key)

    def states(self) -> tuple[GraphState, ...]:
        """What became of each key."""
        return tuple(
            GraphState(
                sequences=key.sequences,
                tokens=key.tokens,
                backends=self.captured[key].prepared.backends if key in self.captured else {},
                reason=self.refused.get(key),
            )
            for key in self.keys
        )

    def run(self, tasks: Sequence[Task]) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Runs the last token of each task.

        Where hooks have changed since a key was captured, it is captured again first.

        Returns:
            [R, vocabulary] and the R slots, overwritten by the next step; None where no graph serves it.
        """
        longest = max(task.length for task in tasks) + 1
        size = self._sizes[bisect_left(self._sizes, len(tasks))]
        key = Key(size, self._lengths[bisect_left(self._lengths, longest)])
        if self._watch.has_changed():
            self._drop()
        if key not in self.captured and key not in self.refused:
            self._try(key)
        captured = self.captured.get(key)
        if captured is None or self._logits is None:
            return None
        self._inputs.fill(tasks)
        self._dispatcher.refresh(captured.prepared, (self._inputs.part(captured.step, tasks),))
        captured.graph.replay()
        return self._logits[: len(tasks)], captured.step.logit_slots[: len(tasks)]

    def _drop(self) -> None:
        self.captured.clear()
        self.refused.clear()
        self._watch.look()

    def _try(self, key: Key) -> None:
        try:
            self.captured[key] = self._capture(key)
        except Exception as error:
            self.refused[key] = f"{type(error).__name__}: {error}"
            _log.warning(
                "decodes of %d sequences and %d tokens run eagerly, capturing one failed: %r", *key, error
            )

    def _capture(self, key: Key) -> Captured:
        self._inputs.fill(())
        step = self._inputs.step(*key)
        bounds = Bounds(sequences=key.sequences, rows=key.sequences, tokens=key.tokens)
        prepared = self._dispatcher.prepare(step.parts, bounds, self._bound)
        self._run(step, prepared)  # compiles what it needs; with padding alone no state is touched
        graph = self._graph_class(self._shares)
        self._shares = None  # no graph shares memory with a capture that failed
        with graph.capture():
            self._run(step, prepared)
        self._shares = graph
        return Captured(graph, step, prepared)

    def _run(self, step: Step, prepared: Prepared) -> None:
        self._inputs.derive(step)
        logits = self._forward(step, prepared)
        if self._logits is None:
            self._logits = logits.new_empty(self._sizes[-1], logits.shape[-1])
        self._logits[: len(logits)].copy_(logits)


__all__ = ["Captured", "GraphState", "Graphs", "Key", "lengths", "sizes"]
