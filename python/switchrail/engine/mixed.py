"""Steps with prompt tokens, captured except for the backends' calls."""

from __future__ import annotations

from functools import partial

import torch

from switchrail.dispatch import NOTHING, Dispatcher
from switchrail.engine.capturer import Captured, Capturer
from switchrail.engine.inputs import Tables
from switchrail.engine.keys import Key
from switchrail.engine.scheduler import Schedule
from switchrail.engine.step import Ran, Step, StepBuilder
from switchrail.engine.verifications import Accept


class MixedSteps:
    """Steps with prompt tokens and few rows, which the device runs faster than the host launches them.

    Work that depends only on the number of rows is captured. Sequences and their lengths differ from step to
    step, so backends are called eagerly with the actual sequences.
    """

    def __init__(
        self,
        capturer: Capturer,
        dispatcher: Dispatcher,
        builder: StepBuilder,
        tables: Tables,
        accept: Accept,
        *,
        rows: int,
    ) -> None:
        """Allocate the inputs that the captured pieces read.

        Args:
            capturer: Captures steps.
            dispatcher: Dispatches the layers' calls to backends.
            builder: Converts schedules to steps.
            tables: The tables of the sequences.
            accept: Commits accepted drafts.
            rows: Rows of the largest captured step.
        """
        device = tables.device
        self._capturer = capturer
        self._dispatcher = dispatcher
        self._builder = builder
        self._page_table, self._last_tokens = tables.page_table, tables.last_tokens
        self._accept = accept
        self._ids, self._positions, self._kv_rows, self._logit_rows = torch.zeros(
            4, rows, dtype=torch.int64, device=device
        ).unbind()
        self._sequence_ids = torch.zeros(rows, dtype=torch.int32, device=device)
        self._real_rows = torch.zeros(1, dtype=torch.int32, device=device)

    def capture(self, key: Key) -> Captured:
        """Capture the mixed steps of a key."""
        rows = key.rows
        step = Step(
            input_ids=self._ids[:rows].unsqueeze(0),
            position_ids=self._positions[:rows].unsqueeze(0),
            sequence_ids=self._sequence_ids[:rows].unsqueeze(0),
            kv_rows=self._kv_rows[:rows],
            logit_rows=self._logit_rows[: self._logits(rows)],
            logit_slots=self._logit_rows[:0],
            parts=(),
            real_rows=self._real_rows,
        )
        for tensor in (*_varying(step), self._real_rows):
            tensor.zero_()
        return Captured(key, self._capturer.capture(step, NOTHING), step, NOTHING)

    def run(self, captured: Captured, schedule: Schedule) -> Ran:
        """Run a schedule's tokens."""
        dispatcher, rows = self._dispatcher, captured.key.rows
        made = self._builder.build(
            schedule, self._page_table, self._last_tokens, rows=rows, logits=self._logits(rows)
        )
        prepared = dispatcher.prepare(made.parts)
        for tensor, new in zip(_varying(captured.step), _varying(made), strict=True):
            tensor.copy_(new)
        self._real_rows.fill_(made.parts[-1].rows.stop)
        with dispatcher.running(prepared):
            captured.pieces.replay(dispatcher.dispatch_rows)
        logits = self._capturer.logits
        assert logits is not None
        if made.drafts is None:
            return Ran(logits[: len(made.logit_slots)], made.logit_slots)
        widths = made.drafts.widths
        slots = made.logit_slots[: len(widths)]
        count = sum(widths) + len(made.logit_slots) - len(widths)
        return Ran(logits[:count], made.logit_slots, widths, partial(self._accept, made, slots=slots))

    def _logits(self, rows: int) -> int:
        return min(rows, self._capturer.rows)


def _varying(step: Step) -> tuple[torch.Tensor, ...]:
    return step.input_ids, step.position_ids, step.sequence_ids, step.kv_rows, step.logit_rows
