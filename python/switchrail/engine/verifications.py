"""Captured verifications of drafted tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from switchrail._core import BoundPlan
from switchrail.dispatch import Dispatcher
from switchrail.engine.capturer import Captured, Capturer
from switchrail.engine.decodes import GREEDY, are_greedy, is_capturable
from switchrail.engine.drafts import Drafted, Verified
from switchrail.engine.keys import Key
from switchrail.engine.pieces import Pieces
from switchrail.engine.sampling import Choose
from switchrail.engine.scheduler import Schedule
from switchrail.engine.step import Ran, Step
from switchrail.engine.verify_inputs import VerifyInputs
from switchrail.ops.batch import Bounds

Accept = Callable[..., torch.Tensor]
"""`switchrail.engine.accept.accept`, with the model's pools and functions filled in."""


class Verifications:
    """Verifications, each captured as two graphs: one computes the logits, and one accepts drafts.

    Tokens are chosen between the two graphs. If all requests are greedy, a third graph usually replaces the
    second one: it chooses the likeliest tokens, and accepts drafts. Backends plan once for each captured size
    (key), and refresh the plan for every step.
    """

    def __init__(
        self,
        capturer: Capturer,
        dispatcher: Dispatcher,
        bound: BoundPlan,
        inputs: VerifyInputs,
        accept: Accept,
        choose: Choose | None,
    ) -> None:
        """Store the arguments. This captures nothing.

        Args:
            capturer: Captures steps.
            dispatcher: Dispatches the layers' calls to backends.
            bound: The routes of captured verifications.
            inputs: The inputs of the verifications.
            accept: Commits accepted drafts.
            choose: The function that chooses the engine's tokens, which a graph may contain; None if no graph
                chooses tokens.
        """
        sequences, width = inputs.numbers.shape[1], inputs.width
        self._deferred = inputs.deferred
        self._settle: Pieces | None = None
        self._commits: list[Callable[[], None]] = []
        self._is_settled = True
        self._capturer = capturer
        self._dispatcher = dispatcher
        self._bound = bound
        self._inputs = inputs
        self._accept = accept
        self._width = width
        self._choose = choose
        self._chosen = torch.zeros(sequences * width, dtype=torch.int64, device=inputs.device)
        self._news = torch.zeros(sequences, 1 + width, dtype=torch.int64, device=inputs.device)

    def capture(self, key: Key) -> Captured:
        """Capture the verifications of a key."""
        assert key.tokens is not None
        count, dispatcher = key.rows // self._width, self._dispatcher
        self._inputs.fill((), Drafted(()))
        step = self._inputs.step(count, key.tokens + self._width - 1)
        bounds = Bounds(sequences=count, rows=key.rows, tokens=key.tokens + self._width - 1)
        prepared = dispatcher.prepare(step.parts, bounds, self._bound)
        pieces = self._capturer.capture(step, prepared, lambda: self._inputs.derive(step))
        try:
            accept = self._capturer.capture_after(lambda: self._keep(step, count))
            choose = self._capture_choice(step, count)
            if self._deferred is not None and self._settle is None:
                self._commits = self._dispatcher.settling(self._deferred.batch)
                self._settle = self._capturer.capture_after(self._apply)
        finally:
            dispatcher.forget()  # frees the verified rows, so that other graphs can use their memory
        return Captured(key, pieces, step, prepared, accept, choose)

    def run(self, captured: Captured, schedule: Schedule) -> Ran:
        """Run the newest token of each task and its drafts."""
        assert schedule.drafted is not None
        tasks, step = schedule.decode, captured.step
        self._inputs.fill(tasks, schedule.drafted)
        lengths = [task.length for task in tasks]
        self._dispatcher.refresh(captured.prepared, (self._inputs.part(step, lengths),))
        captured.pieces.replay(self._dispatcher.dispatch)
        logits, slots = self._capturer.logits_of(step.logit_slots[: len(tasks)], self._width)
        widths, accept = (self._width,) * len(tasks), partial(self._accept_rows, captured)
        if captured.choose is None or not are_greedy(tasks):
            return Ran(logits, slots, widths, accept)
        choose = partial(self._replay, captured.choose, len(tasks))
        verified = Verified(self._inputs.numbers, self._inputs.newest, self._news)
        return Ran(logits, slots, widths, accept, choose, verified)

    def _accept_rows(self, captured: Captured, chosen: torch.Tensor) -> torch.Tensor:
        assert captured.accept is not None
        self._chosen[: len(chosen)].copy_(chosen)
        return self._replay(captured.accept, len(chosen) // self._width)

    def _replay(self, accept: Pieces, sequences: int) -> torch.Tensor:
        # set first: after an exception right behind the replay, `settle` must not skip the deferred commits
        self._is_settled = self._deferred is None
        accept.replay(self._dispatcher.dispatch)
        return self._news[:sequences]

    def _capture_choice(self, step: Step, count: int) -> Pieces | None:
        """Capture the choice of the likeliest tokens, with the acceptance that follows it."""
        choose = self._choose
        if choose is None or not is_capturable(choose):
            return None

        def work() -> None:
            logits, _ = self._capturer.logits_of(step.logit_slots, self._width)
            self._chosen[: len(logits)].copy_(choose(logits, [GREEDY] * len(logits), ()))
            self._keep(step, count)

        return self._capturer.capture_after(work)

    def settle(self) -> None:
        """Make the deferred commits, before a step that is not a captured verification."""
        if not self._is_settled:
            assert self._settle is not None
            self._settle.replay(self._dispatcher.dispatch)
            self._is_settled = True

    def _apply(self) -> None:
        assert self._deferred is not None
        for commit in self._commits:
            commit()
        self._deferred.clear()

    def _keep(self, step: Step, count: int) -> None:
        chosen = self._chosen[: count * self._width]
        self._accept(step, chosen, slots=step.logit_slots, deferred=self._deferred, news=self._news[:count])
