"""Captured decodes, which are steps without prompt tokens and without drafts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Final

import torch

from switchrail._core import BoundPlan
from switchrail.dispatch import Dispatcher
from switchrail.engine.capturer import Captured, Capturer
from switchrail.engine.inputs import DecodeInputs
from switchrail.engine.keys import Key
from switchrail.engine.pieces import Pieces
from switchrail.engine.sampling import Choose
from switchrail.engine.step import Ran, Step
from switchrail.engine.task import Task
from switchrail.hooks import chain
from switchrail.hooks.site import Site
from switchrail.hooks.target import resolve
from switchrail.ops.batch import Bounds
from switchrail.params import SamplingParams

_temperature = attrgetter("params.temperature")

GREEDY: Final = SamplingParams()


class Decodes:
    """Captured decodes. Backends plan once for each captured size (key), and refresh the plan for each step.

    Calls of backends that can't be captured run eagerly between the captured pieces.
    """

    def __init__(
        self,
        capturer: Capturer,
        dispatcher: Dispatcher,
        bound: BoundPlan,
        inputs: DecodeInputs,
        eager: Collection[str],
        keys: Iterable[Key],
        choose: Choose | None,
    ) -> None:
        """Store the arguments, and let backends allocate their graph state. This captures nothing.

        Args:
            capturer: Captures steps.
            dispatcher: Dispatches the layers' calls to backends.
            bound: The routes of captured decodes.
            inputs: The inputs of the decodes.
            eager: The ops whose decodes can't be captured.
            keys: All keys of the engine; only keys of the kind `decode` are used here.
            choose: The function that chooses the engine's tokens, which a graph may contain; None if no graph
                chooses tokens.

        Raises:
            DispatchError: Methods `graph_fill_value` of two backends return different values; see
                `ops/steps.py`.
        """
        self._capturer = capturer
        self._dispatcher = dispatcher
        self._bound = bound
        self._inputs = inputs
        self._eager = frozenset(eager)
        self._choose = choose
        sizes = [(key.rows, key.tokens) for key in keys if key.kind == "decode" and key.tokens is not None]
        routes = {bound.at("decode", (1,) * rows, (tokens,) * rows) for rows, tokens in sizes}
        ops = dispatcher.ops - self._eager
        rows, tokens = map(max, zip(*sizes, strict=True))
        bounds = Bounds(sequences=rows, rows=rows, tokens=tokens)
        dispatcher.once("init_graph_state", routes, ops, bounds=bounds)
        inputs.padding = dispatcher.once("graph_fill_value", routes, ops) or 0

    def capture(self, key: Key) -> Captured:
        """Capture the decodes of a key."""
        assert key.tokens is not None
        self._inputs.fill(())
        step = self._inputs.step(key.rows, key.tokens)
        bounds = Bounds(sequences=key.rows, rows=key.rows, tokens=key.tokens)
        ops = self._dispatcher.ops - self._eager
        prepared = self._dispatcher.prepare(step.parts, bounds, self._bound, ops)
        pieces = self._capturer.capture(step, prepared, lambda: self._inputs.derive(step))
        return Captured(key, pieces, step, prepared, None, *self._capture_choice(step))

    def _capture_choice(self, step: Step) -> tuple[Pieces | None, torch.Tensor | None]:
        """Capture the choice of the likeliest tokens, if a graph may contain the choosing function."""
        choose = self._choose
        if choose is None or not is_capturable(choose):
            return None, None
        chosen: list[torch.Tensor] = []

        def work() -> None:
            logits, slots = self._capturer.logits_of(step.logit_slots)
            chosen[:] = [choose(logits, [GREEDY] * len(slots), ())]
            self._inputs.store(slots, chosen[0])

        pieces = self._capturer.capture_after(work)
        return pieces, chosen[0]

    def run(self, captured: Captured, tasks: Sequence[Task], *, fresh: bool = False) -> Ran:
        """Run the newest token of each task in a captured step.

        Args:
            captured: The captured step.
            tasks: The tasks.
            fresh: See `DecodeInputs.fill`.
        """
        dispatcher, inputs, step = self._dispatcher, self._inputs, captured.step
        inputs.fill(tasks, fresh=fresh)
        dispatcher.refresh(captured.prepared, (inputs.part(step, padded=True),))
        if self._eager:
            prepared = dispatcher.prepare((inputs.part(step, padded=False),), ops=self._eager)
            with dispatcher.running(prepared):
                captured.pieces.replay(dispatcher.dispatch_rows)
        else:
            captured.pieces.replay(dispatcher.dispatch)
        inputs.launched()
        choose = None
        if captured.choose is not None and are_greedy(tasks):
            choose = partial(self._chosen, captured, len(tasks))
        return Ran(*self._capturer.logits_of(step.logit_slots[: len(tasks)]), choose=choose)

    def _chosen(self, captured: Captured, count: int) -> torch.Tensor:
        assert captured.choose is not None
        assert captured.chosen is not None
        captured.choose.replay(self._dispatcher.dispatch)
        return captured.chosen[:count]


def are_greedy(tasks: Iterable[Task]) -> bool:
    """Whether all tasks take the likeliest tokens."""
    return not any(map(_temperature, tasks))


def is_capturable(function: Choose) -> bool:
    """Whether a graph may contain a function: the function is marked as capturable and has no hooks.

    A replay repeats only the launches of the function, and calls no hooks.
    """
    site = resolve(function)
    is_hooked = isinstance(site, Site) and bool(chain.running(site))
    return getattr(function, "capturable", False) and not is_hooked
