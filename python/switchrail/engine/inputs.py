"""Inputs of captured decodes: tensors at fixed addresses, filled for each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from switchrail.dispatch import Part
from switchrail.engine.step import Step, part_of
from switchrail.engine.task import Task
from switchrail.platforms.serving import Forward
from switchrail.pools import pages_of

_POSITIONS, _SLOTS, _STEPS = range(3)


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables from which the inputs of captured steps are derived, with the sizes of these inputs.

    Attributes:
        page_table: [slots, pages] int32, the pages of the sequence in each slot.
        last_tokens: [slots] int64, the newest token of the sequence in each slot.
        sequences: Maximum number of sequences in a step.
        page_size: Page size in tokens.
        pin_memory: Whether the device copies from pinned memory asynchronously.
    """

    page_table: torch.Tensor
    last_tokens: torch.Tensor
    sequences: int
    page_size: int
    pin_memory: bool

    @property
    def device(self) -> torch.device:
        """The device of the tables."""
        return self.page_table.device


class DecodeInputs:
    """The inputs of decodes, one row per sequence. Rows after the last sequence are padding, without a slot.

    The host sends only each row's position and slot. The device derives everything else from these and the
    page table (`derive`), so that a step needs only one small transfer. If each sequence has one slot
    (`apart` is 0), and the next decode has the same sequences in the same order, the device advances the
    positions itself, and the host sends nothing.

    Attributes:
        padding: The number of cached tokens of a padding row, on the reserved page; 0 unless backends need
            more.
    """

    def __init__(self, tables: Tables, derived: Forward, apart: int = 0) -> None:
        """Allocate the tensors.

        Args:
            tables: The tables; each sequence has one row.
            derived: The function for the operation `DecodeRows`.
            apart: The difference between a sequence's second slot and its first; 0 if sequences have one
                slot. States are written to the second slot. They are read from the second slot too, unless
                `fill` or `begin` says otherwise.
        """
        sequences, device = tables.sequences, tables.device
        self.padding = 0
        self._apart = apart
        self._states = torch.full((2, sequences), -1, dtype=torch.int64, device=device)
        self._derived = derived
        self._page_table, self._last_tokens = tables.page_table, tables.last_tokens
        self._page_size, self._pin_memory = tables.page_size, tables.pin_memory
        self._rows = torch.zeros(3, sequences, dtype=torch.int64, device=device)
        self._rows[_SLOTS] = -1
        self._filled: tuple[list[int], list[int]] = [], []  # the lengths and slots of the last `fill`
        # the lengths and slots that the device has now; None if unknown
        self._next: tuple[list[int], list[int]] | None = None
        self._ids = torch.zeros(sequences, dtype=torch.int64, device=device)
        self._kv_lens = torch.zeros(sequences, dtype=torch.int32, device=device)
        self._kv_rows = torch.zeros(sequences, dtype=torch.int64, device=device)
        self._sequence_ids = torch.zeros(sequences, dtype=torch.int32, device=device)
        self._count = torch.arange(sequences + 1, dtype=torch.int64, device=device)
        self._cu_seqlens = self._count.int()
        self._real_rows = torch.zeros(1, dtype=torch.int32, device=device)
        self._yes = torch.ones(sequences, dtype=torch.bool, device=device)

    def fill(self, tasks: Sequence[Task], *, fresh: bool = False) -> None:
        """Give the device the rows of decoding tasks, without waiting for a transfer.

        Args:
            tasks: The tasks.
            fresh: Whether states are read from the first slots; see `apart` in `__init__`.
        """
        # The device's lengths are unknown until `launched` is called: a decode that fails may or may not have
        # advanced them.
        known, self._next = self._next, None
        self._filled = lengths, slots = [task.length for task in tasks], [task.slot for task in tasks]
        if known == self._filled:
            return
        host = torch.zeros(self._rows.shape, dtype=torch.int64, pin_memory=self._pin_memory)
        rows = host.numpy()
        rows[_SLOTS] = -1
        rows[_POSITIONS, : len(tasks)], rows[_SLOTS, : len(tasks)] = lengths, slots
        self._rows.copy_(host, non_blocking=True)
        if self._apart:
            here = self._rows[_SLOTS]
            for states, shift in zip(self._states, (0 if fresh else self._apart, self._apart), strict=True):
                states.copy_(torch.where(here < 0, here, here + shift))

    def launched(self) -> None:
        """Note that a decode of the last `fill` was launched: each of its sequences is one token longer."""
        if not self._apart:
            lengths, slots = self._filled
            self._next = [length + 1 for length in lengths], slots

    def store(self, slots: torch.Tensor, tokens: torch.Tensor) -> None:
        """Store the newest token of the sequence in each slot.

        Slot -1 (padding) stores in the reserved slot 0. Token -1, which means that the row's largest logit
        isn't finite, is stored as 0.
        """
        self._last_tokens.scatter_(0, slots.clamp(min=0), tokens.clamp(min=0))

    def step(self, sequences: int, tokens: int) -> Step:
        """The step of the first `sequences` rows, with caches of up to `tokens` tokens."""
        table = self._page_table.new_zeros(sequences, pages_of(tokens, self._page_size))
        rows = slice(0, sequences)
        return Step(
            input_ids=self._ids[rows].unsqueeze(0),
            position_ids=self._rows[_POSITIONS, rows].unsqueeze(0),
            sequence_ids=self._sequence_ids[rows].unsqueeze(0),
            kv_rows=self._kv_rows[rows],
            logit_rows=self._count[rows],
            logit_slots=self._rows[_SLOTS, rows],
            parts=(self._part(table, (self.padding,) * sequences),),
            real_rows=self._real_rows,
        )

    def part(self, step: Step, *, padded: bool) -> Part:
        """The part of a step made by `step`, with the lengths of the last `fill`.

        Args:
            step: The step.
            padded: Whether to include the step's padding.
        """
        (made,) = step.parts
        assert made.pages is not None
        lengths = [length + 1 for length in self._filled[0]]
        if not padded:
            return self._part(made.pages.page_table[: len(lengths)], tuple(lengths))
        lengths += [self.padding] * (len(made.lengths) - len(lengths))
        # the tensors stay the same objects, so backends need not check them again
        return replace(made, pages=replace(made.pages, kv_seqlens=tuple(lengths)))

    def bounded_step(self, sequences: int, tokens: int) -> Step:
        """Like `step`, for sequences whose lengths only the device knows; the host has upper bounds."""
        made = self.step(sequences, tokens)
        return replace(made, parts=(_bounded(made.parts[0], (self.padding,) * sequences),))

    def bounded_part(self, step: Step, lengths: Sequence[int]) -> Part:
        """The part of a step made by `bounded_step`, with upper bounds for the lengths of its sequences."""
        (made,) = step.parts
        return _bounded(made, (*lengths, *[self.padding] * (len(made.lengths) - len(lengths))))

    def begin(self, positions: torch.Tensor, slots: torch.Tensor, *, states: bool) -> None:
        """Start a series of decodes with rows that are on the device.

        The first decode's `derive` uses these positions; each later one first advances them by one.

        Args:
            positions: [N] int64.
            slots: [N] int64, -1 for padding.
            states: Whether the model has states. The first decode reads them from the first slots.
        """
        count = len(slots)
        self._rows[_POSITIONS, :count].copy_(positions)
        self._rows[_SLOTS, :count].copy_(slots)
        self._rows[_STEPS, :count].zero_()
        if states:
            self._states[0, :count].copy_(slots)
            self._states[1, :count].copy_(torch.where(slots < 0, slots, slots + self._apart))

    def pad(self, rows: torch.Tensor) -> None:
        """Turn the selected rows, [N] bool, into padding; their states in second slots become undefined."""
        self._rows[_SLOTS, : len(rows)].masked_fill_(rows, -1)

    def read_second(self, sequences: int) -> None:
        """Let all later decodes read states from the second slots."""
        self._states[0, :sequences].copy_(self._states[1, :sequences])

    def derive(self, step: Step) -> None:
        """Compute the remaining inputs from the rows, on the device."""
        (part,) = step.parts
        assert part.pages is not None
        self._derived(
            self._rows[:, part.rows],
            self._last_tokens,
            self._page_table,
            page_size=self._page_size,
            out=(
                *(step.input_ids[0], part.pages.page_table, step.kv_rows),
                *(part.pages.kv_lens, step.sequence_ids[0], self._real_rows),
            ),
        )
        if self.padding:
            part.pages.kv_lens.clamp_(min=self.padding)

    def _part(self, table: torch.Tensor, lengths: tuple[int, ...]) -> Part:
        rows = slice(0, len(lengths))
        return part_of(
            "decode",
            rows,
            seqlens=(1,) * len(lengths),
            cu_seqlens=self._cu_seqlens[: len(lengths) + 1],
            slots=self._states[1, rows] if self._apart else self._rows[_SLOTS, rows],
            read_slots=self._states[0, rows] if self._apart else None,
            has_initial_state=self._yes[rows],
            page_table=table,
            kv_lens=self._kv_lens[rows],
            kv_seqlens=lengths,
        )


def _bounded(part: Part, lengths: tuple[int, ...]) -> Part:
    assert part.pages is not None
    return replace(part, pages=replace(part.pages, kv_seqlens=lengths, kv_bounds=True))


def decode_rows(
    rows: torch.Tensor,
    last_tokens: torch.Tensor,
    page_table: torch.Tensor,
    *,
    page_size: int,
    out: Sequence[torch.Tensor],
) -> None:
    """Compute the inputs of a captured decode, without waiting for the device.

    Each call updates `rows`, so that the next call with this tensor is for the sequences' next tokens.

    Args:
        rows: [3, N] int64: each row's position, its slot, and a number that is first added to the position
            and then set to 1. Slot -1 is padding: its position doesn't change, and its number is set to 0.
        last_tokens: [slots] int64, the newest token of the sequence in each slot.
        page_table: [slots, pages] int32, the pages of the sequence in each slot. The entries of slot 0, which
            is never assigned, are page 0.
        page_size: Page size in tokens.
        out: Six contiguous tensors, which receive:
            - [N] int64, the tokens.
            - [N, P] int32, the first P pages of each row's sequence; those of slot 0 for padding.
            - [N] int64, the row of the caches for the position.
            - [N] int32, the number of tokens up to and including the position; 0 for padding.
            - [N] int32, the slots.
            - [1] int32, the number of rows without padding.
    """
    ids, pages, kv_rows, kv_lens, sequence_ids, real = out
    positions, slots, steps = rows
    is_real = slots >= 0
    positions.add_(steps * is_real)
    steps.copy_(is_real)
    owners = slots.clamp(min=0)
    torch.index_select(page_table[:, : pages.shape[1]], 0, owners, out=pages)
    torch.index_select(last_tokens, 0, owners, out=ids)
    page = pages.gather(1, (positions // page_size).unsqueeze(1)).squeeze(1).long()
    torch.add(page * page_size, positions % page_size, out=kv_rows)
    kv_lens.copy_((positions + 1) * is_real)
    sequence_ids.copy_(slots)
    real.copy_(is_real.sum())
