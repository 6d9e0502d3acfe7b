"""Captures forward passes, in one working memory and with one place for their logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from switchrail.dispatch import Prepared
from switchrail.engine.keys import Key
from switchrail.engine.pieces import Pieces
from switchrail.engine.step import Step
from switchrail.platforms.graph import Graph

Elsewhere = Callable[[Any], None]

Forward = Callable[[Step, Prepared, Elsewhere], torch.Tensor]
"""Runs a step, [R, vocabulary]; the calls that its backends have not planned go to the third argument."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A step that was captured.

    Attributes:
        key: What it serves.
        pieces: What launches it.
        step: What it reads.
        prepared: The plans of the backends in the pieces, refreshed for each step.
    """

    key: Key
    pieces: Pieces
    step: Step
    prepared: Prepared


class Capturer:
    """Captures forward passes that never run at one time.

    Attributes:
        logits: [sequences, vocabulary], where all of them write their logits; None before the first.
    """

    def __init__(self, forward: Forward, graph_class: type[Graph], *, sequences: int) -> None:
        """Captures nothing yet.

        Args:
            forward: Runs a step.
            graph_class: What captures.
            sequences: Rows of logits, at most.
        """
        self._forward = forward
        self._graph_class = graph_class
        self._sequences = sequences
        self._shares: Graph | None = None  # the last one, if its capture didn't fail
        self.logits: torch.Tensor | None = None

    def capture(self, step: Step, prepared: Prepared, before: Callable[[], None] = lambda: None) -> Pieces:
        """Captures a step; calls of what is not prepared stay outside.

        Args:
            step: What it reads: padding alone, so that no state is touched.
            prepared: The plans of the backends that are captured.
            before: Captured as well, before the step.
        """
        self._run(step, prepared, _ignored, before)  # compiles what it needs
        pieces = Pieces(self._graph_class, self._shares)
        self._shares = None  # no graph shares memory with a capture that failed
        with pieces.capture():
            self._run(step, prepared, pieces.cut, before)
        self._shares = pieces.last
        return pieces

    def _run(self, step: Step, prepared: Prepared, elsewhere: Elsewhere, before: Callable[[], None]) -> None:
        before()
        logits = self._forward(step, prepared, elsewhere)
        if self.logits is None:
            self.logits = logits.new_empty(self._sequences, logits.shape[-1])
        self.logits[: len(logits)].copy_(logits)


def _ignored(call: object) -> None:
    """A call that isn't made: its output is as it was allocated."""


__all__ = ["Captured", "Capturer", "Elsewhere", "Forward"]
