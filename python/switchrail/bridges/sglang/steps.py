"""Runs SGLang's forward passes as steps of a dispatcher, with Switchrail's batches."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from switchrail.adapters import sequences
from switchrail.dispatch import NOTHING, Dispatcher, Part, Prepared
from switchrail.errors import DispatchError
from switchrail.ops.batch import Bounds, CheckpointBatch, Phase, StateBatch

_log = logging.getLogger("switchrail")


class Steps:
    """The forward passes of one model runner, each a step of a dispatcher.

    SGLang announces the start of a pass, but not its end. So a pass ends when the next pass starts. It also
    ends when a layer is called again: SGLang repeats a pass, for example before capturing it.

    Attributes:
        dispatchers: By phase, the dispatcher that runs the layers' calls.
        bypassed: The number of passes in which some layers ran without Switchrail's backends.
    """

    def __init__(self, dispatchers: Mapping[Phase, Dispatcher]) -> None:
        self.dispatchers = dispatchers
        self.bypassed = 0
        self._prepared: Prepared = NOTHING
        self._running: AbstractContextManager[None] | None = None
        self._called: set[object] = set()
        self._captured: dict[tuple[str, int], Prepared] = {}
        self._parts: dict[tuple[str, int], Part] = {}
        self._is_due = False  # whether no layer of the current eager pass was called yet

    @property
    def phase(self) -> Phase:
        """The phase of the current pass.

        Raises:
            DispatchError: The pass was not planned.
        """
        if not self._prepared.parts:
            raise DispatchError("a layer was called in a pass that Switchrail did not plan", found=0)
        return self._prepared.parts[0].phase

    def begin(self, parts: Sequence[Part]) -> None:
        """Plans a pass."""
        self.end()
        self._prepared = self.dispatchers[parts[0].phase].prepare(parts)
        self._is_due = True

    def drop(self) -> None:
        """Ends the last pass; the next one has no plans."""
        self.end()
        self._prepared = NOTHING

    def served_elsewhere(self) -> None:
        """Notes that layers of the pass run without the planned calls, which is not counted in `bypassed`."""
        self._is_due = False

    def capture(self, part: Part, bounds: Bounds) -> None:
        """Plans a pass that is captured as a graph and replayed."""
        self.end()
        self._prepared = self.dispatchers[part.phase].prepare([part], bounds)
        self._captured[part.phase, bounds.sequences] = self._prepared
        self._parts[part.phase, bounds.sequences] = part

    def captured(self, phase: Phase, sequences: int) -> Part:
        """The part of a captured pass as it was last planned or refreshed."""
        return self._parts[phase, sequences]

    def replay(self, part: Part) -> None:
        """Refreshes the plans of a captured pass."""
        self.end()
        key = part.phase, len(part.lengths)
        self._prepared, self._parts[key] = self._captured[key], part
        self.dispatchers[part.phase].refresh(self._prepared, [part])

    def dispatch(self, call: Any) -> None:
        """Runs a layer's call."""
        dispatcher = self.dispatchers[self.phase]
        self._is_due = False
        if self._running is None or call[0] in self._called:
            self.end()
            self._running = dispatcher.running(self._prepared)
            self._running.__enter__()
        self._called.add(call[0])
        dispatcher.dispatch_rows(call)

    def zero_padding(self, out: torch.Tensor) -> None:
        """Sets the padding rows of a result to 0."""
        rows = self._prepared.parts[-1].rows.stop
        if len(out) > rows:
            out[rows:].zero_()

    def end(self) -> None:
        """Ends the current pass, if any. Adds it to `bypassed` if a layer was not called."""
        running, self._running = self._running, None
        self._called.clear()
        if self._is_due:
            self._is_due = False
            self._bypass("no layer was called in a pass")
        if running is None:
            return
        try:
            running.__exit__(None, None, None)
        except DispatchError as error:
            self._bypass(str(error))

    def _bypass(self, problem: str) -> None:
        self.bypassed += 1
        if self.bypassed == 1:
            _log.warning("SGLang ran layers with its own kernels, not Switchrail's backends: %s", problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """States from within prompts that SGLang's prefix cache keeps.

    Attributes:
        every: States can be kept after each multiple of this number of tokens.
        after: For each sequence, the state after this many of its rows is kept; 0 for none.
        slots: [N] on the device, the slots for these states.
    """

    every: int
    after: tuple[int, ...]
    slots: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Extended:
    """A pass over tokens of prompts.

    Attributes:
        seqlens: The number of rows of each sequence.
        cu_seqlens: [N + 1] int32, the first row of each sequence, then the number of rows.
        slots: [N], the slots of the states.
        started: [N] bool, whether a sequence already has a state.
        tracked: The states to keep for the prefix cache; None if there are none.
    """

    seqlens: tuple[int, ...]
    cu_seqlens: torch.Tensor
    slots: torch.Tensor
    started: torch.Tensor
    tracked: Tracked | None = None

    def parts(self, *, checkpoints: bool) -> list[Part]:
        """The parts of the pass. States to keep may need several parts if backends lack checkpoints."""
        if self.tracked is None:
            return [_part("prefill", self.seqlens, self.cu_seqlens, self.slots, self.slots, self.started)]
        if not checkpoints:
            return self._split(self.tracked)
        columns = max(self.seqlens) // self.tracked.every
        table = self.slots.new_full((len(self.seqlens), columns), -1)
        rows = [n for n, after in enumerate(self.tracked.after) if after]
        index = torch.tensor(rows, dtype=torch.int64).to(table.device, non_blocking=True)
        column = torch.tensor([self.tracked.after[n] // self.tracked.every - 1 for n in rows])
        kept = self.tracked.slots[index].to(table.dtype)
        table[index, column.to(table.device, non_blocking=True)] = kept
        batch = CheckpointBatch(
            cu_seqlens=self.cu_seqlens,
            seqlens=self.seqlens,
            read_slots=self.slots,
            write_slots=self.slots,
            has_initial_state=self.started,
            null_slot=0,
            checkpoint_every=self.tracked.every,
            checkpoint_slots=table,
        )
        return [Part(phase="prefill", rows=slice(0, sum(self.seqlens)), states=batch)]

    def _split(self, tracked: Tracked) -> list[Part]:
        """Splits each sequence after the state to keep, so that the backend writes this state to its slot."""
        own, kept = self.slots, tracked.slots.to(self.slots.dtype)
        # for each part: (sequence, rows, whether to read the kept slot, whether to write it)
        groups: list[list[tuple[int, int, bool, bool]]] = [[]]
        for n, (length, after) in enumerate(zip(self.seqlens, tracked.after, strict=True)):
            if not 0 < after < length:
                groups[-1].append((n, length, False, False))
                continue
            groups[-1].append((n, after, False, True))
            groups.append([(n, length - after, True, False)])
        parts = []
        row = 0
        for group in groups:
            index = torch.tensor([n for n, *_ in group]).to(own.device, non_blocking=True)
            reads, writes = (
                torch.tensor([each[column] for each in group]).to(own.device, non_blocking=True)
                for column in (2, 3)
            )
            seqlens = tuple(length for _, length, _, _ in group)
            parts.append(
                _part(
                    "prefill",
                    seqlens,
                    sequences(seqlens, own.device)["cu_seqlens"],
                    torch.where(reads, kept[index], own[index]),
                    torch.where(writes, kept[index], own[index]),
                    self.started[index] | reads,
                    row,
                )
            )
            row += sum(seqlens)
        return parts

    def last_states(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The slots of final states that the prefix cache keeps and the slots to copy them to, or None."""
        if self.tracked is None:
            return None
        after = self.tracked.after
        rows = [n for n, length in enumerate(self.seqlens) if after[n] == length]
        index = torch.tensor(rows, dtype=torch.int64).to(self.slots.device, non_blocking=True)
        return (self.slots[index], self.tracked.slots[index]) if rows else None


def _part(
    phase: Phase,
    seqlens: tuple[int, ...],
    cu_seqlens: torch.Tensor,
    reads: torch.Tensor,
    writes: torch.Tensor,
    started: torch.Tensor,
    row: int = 0,
) -> Part:
    batch = StateBatch(
        cu_seqlens=cu_seqlens,
        seqlens=seqlens,
        read_slots=reads,
        write_slots=writes,
        has_initial_state=started,
        null_slot=0,
    )
    return Part(phase=phase, rows=slice(row, row + sum(seqlens)), states=batch)


def decode_part(cu_seqlens: torch.Tensor, slots: torch.Tensor) -> Part:
    """The part of a pass over one token of each sequence."""
    started = torch.ones_like(slots, dtype=torch.bool)
    return _part("decode", (1,) * len(slots), cu_seqlens, slots, slots, started)
