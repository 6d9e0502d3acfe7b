"""Captures forward passes that share working memory and one buffer for logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from switchrail.dispatch import Prepared
from switchrail.engine.keys import Key
from switchrail.engine.pieces import Pieces
from switchrail.engine.step import Step
from switchrail.platforms.graph import Graph

Elsewhere = Callable[[Any], None]
"""Receives the calls of ops without a plan."""

Forward = Callable[[Step, Prepared, Elsewhere], torch.Tensor]
"""Runs a step and returns logits [R, vocabulary]."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured step.

    Attributes:
        key: The key that the step was captured for.
        pieces: The graphs of the step's pieces.
        step: The inputs that the graphs read.
        prepared: The plans of the backends in the pieces, refreshed for each step.
        accept: The graph that commits accepted drafts; None except for verifications.
        choose: The graph that chooses the likeliest tokens, and in verifications also commits accepted
            drafts; None if tokens are chosen eagerly.
        chosen: The tokens that a decode's `choose` writes, [R] int64; otherwise None.
        others: All steps of captured proposals with their plans; empty for steps of other kinds.
    """

    key: Key
    pieces: Pieces
    step: Step
    prepared: Prepared
    accept: Pieces | None = None
    choose: Pieces | None = None
    chosen: torch.Tensor | None = None
    others: tuple[tuple[Step, Prepared], ...] = ()


class Capturer:
    """Captures forward passes that are never replayed concurrently.

    Attributes:
        rows: Maximum number of rows of logits.
        logits: [rows, vocabulary], the shared buffer of logits; None before the first capture.
    """

    def __init__(self, forward: Forward, graph_class: type[Graph], *, rows: int) -> None:
        """Create the capturer.

        Args:
            forward: Runs a step.
            graph_class: The class of the graphs.
            rows: Maximum number of rows of logits.
        """
        self._forward = forward
        self._graph_class = graph_class
        self.rows = rows
        self._shares: Graph | None = None  # the last graph, whose memory later graphs share if possible
        self.logits: torch.Tensor | None = None

    def capture(self, step: Step, prepared: Prepared, before: Callable[[], None] = lambda: None) -> Pieces:
        """Capture a step, except the calls of ops without a plan; each replay makes these calls eagerly.

        Args:
            step: The step's inputs, which must be padding only, so that the capture changes no state.
            prepared: The plans of the captured backends.
            before: Work to capture in front of the step.
        """
        run = partial(self._run, step, prepared, before)
        run(_ignored)  # compiles the kernels of the step
        return self._record(run)

    def capture_after(self, work: Callable[[], None]) -> Pieces:
        """Run work once, then capture it as one piece, without eager calls."""
        work()
        return self._record(lambda elsewhere: work())

    def logits_of(self, slots: torch.Tensor, width: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
        """The logits of the last replayed step, `width` rows for each of these slots; and the slots."""
        assert self.logits is not None
        return self.logits[: width * slots.shape[0]], slots  # `len(slots)` takes several microseconds

    def _record(self, work: Callable[[Elsewhere], None]) -> Pieces:
        pieces = Pieces(self._graph_class, self._shares)
        try:
            with pieces.capture():
                work(pieces.cut)
        finally:
            self._shares = pieces.last
        return pieces

    def _run(self, step: Step, prepared: Prepared, before: Callable[[], None], elsewhere: Elsewhere) -> None:
        before()
        logits = self._forward(step, prepared, elsewhere)
        form = logits.dtype, logits.shape[-1]
        if self.logits is None or form != (self.logits.dtype, self.logits.shape[-1]):  # hooks can change both
            self.logits = logits.new_empty(self.rows, logits.shape[-1])
        self.logits[: len(logits)].copy_(logits)


def _ignored(call: object) -> None:
    """Ignore the call; its output tensor stays as it is."""
