"""Captured steps without prompt tokens (decodes)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch

from switchrail._core import BoundPlan
from switchrail.dispatch import Dispatcher
from switchrail.engine.capturer import Captured, Capturer
from switchrail.engine.inputs import DecodeInputs
from switchrail.engine.keys import Key
from switchrail.engine.task import Task
from switchrail.ops.batch import Bounds


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
    ) -> None:
        """Store the arguments, and let backends allocate their graph state. This captures nothing.

        Args:
            capturer: Captures steps.
            dispatcher: Dispatches the layers' calls to backends.
            bound: The routes of captured decodes.
            inputs: The inputs of the decodes.
            eager: The ops whose backends can't be captured.
            keys: All keys of the engine; those of the kind `decode` may be captured here.

        Raises:
            DispatchError: Backends return different fill values.
        """
        self._capturer = capturer
        self._dispatcher = dispatcher
        self._bound = bound
        self._inputs = inputs
        self._eager = frozenset(eager)
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
        return Captured(key, pieces, step, prepared)

    def run(
        self, captured: Captured, tasks: Sequence[Task], *, fresh: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the last token of each task in a captured step.

        Args:
            captured: The captured step.
            tasks: The tasks.
            fresh: See `DecodeInputs.fill`.

        Returns:
            [R, vocabulary], and the slots of the R tasks. The next step overwrites both.
        """
        dispatcher, inputs, step = self._dispatcher, self._inputs, captured.step
        inputs.fill(tasks, fresh=fresh)
        dispatcher.refresh(captured.prepared, (inputs.part(step, tasks, padded=True),))
        if self._eager:
            prepared = dispatcher.prepare((inputs.part(step, tasks, padded=False),), ops=self._eager)
            with dispatcher.running(prepared):
                captured.pieces.replay(dispatcher.dispatch_rows)
        else:
            captured.pieces.replay(dispatcher.dispatch)
        return self._capturer.logits_of(step.logit_slots[: len(tasks)])


__all__ = ["Decodes"]
