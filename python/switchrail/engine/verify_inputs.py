"""Inputs of captured verifications: tensors with fixed addresses, filled for each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import torch

from switchrail.dispatch import Part
from switchrail.engine.deferred import DeferredCommits
from switchrail.engine.drafts import NONE, Drafted
from switchrail.engine.speculation import flat_tokens
from switchrail.engine.step import DraftRows, Step, part_of
from switchrail.engine.task import Task
from switchrail.engine.transfer import sent, transfer
from switchrail.ops.batch import VerifyBatch
from switchrail.pools import pages_of

_LENGTH, _SLOT, _PAGES = range(3)
_TOKENS, _PARENTS, _DEPTHS, _BEFORE = range(4)


class VerifyInputs:
    """Inputs with X rows per sequence, padded after a sequence's last draft and after the last sequence.

    All rows of a sequence count as tokens in its cache, so a backend reads the keys and values of padding
    rows too, and weighs them with 0. Padding rows write their keys and values to the places of the sequence's
    next tokens. If a place is beyond the sequence's pages, they write to page 0 instead, and the backend
    reads the sequence's first page. So a sequence reads only what it has written. Rows of padding sequences
    write to page 0.

    The device derives most inputs from a few numbers per row and from the page table (`derive`), so that a
    step needs only one transfer.

    Attributes:
        device: The device of the model.
    """

    def __init__(
        self,
        page_table: torch.Tensor,
        last_tokens: torch.Tensor,
        *,
        sequences: int,
        width: int,
        page_size: int,
        device: torch.device,
        pin_memory: bool,
        are_trees: bool,
        deferred: DeferredCommits | None,
    ) -> None:
        """Allocate the tensors.

        Args:
            page_table: [slots, pages] int32, the pages of the sequence in each slot.
            last_tokens: [slots] int64, the newest token of the sequence in each slot.
            sequences: Maximum number of sequences.
            width: X.
            page_size: Page size in tokens.
            device: The device of the model.
            pin_memory: Whether the device copies from pinned memory asynchronously.
            are_trees: Whether drafts may be trees.
            deferred: The commits that are left to the next verification; None if there are none.
        """
        self._deferred = deferred
        self._pending_records, self._records = torch.full(
            (2, sequences), -1, dtype=torch.int64, device=device
        ).unbind()
        self._pending_rows = torch.zeros(sequences, width, dtype=torch.bool, device=device)
        self._page_table = page_table
        self._last_tokens = last_tokens
        self._page_size = page_size
        self._pin_memory = pin_memory
        self._are_trees = are_trees
        self._width = width
        self.device = device
        self._columns = torch.arange(width, dtype=torch.int64, device=device)
        self._page_numbers = torch.arange(page_table.shape[1], dtype=torch.int64, device=device)
        self._tasks = torch.zeros(3, sequences, dtype=torch.int64, device=device)
        self._tasks[_SLOT] = -1
        self._table = torch.zeros(4, sequences, width, dtype=torch.int64, device=device)
        rows = sequences * width
        self._rows = torch.arange(rows, dtype=torch.int64, device=device)
        self._ids, self._positions, self._kv_rows = torch.zeros(
            3, rows, dtype=torch.int64, device=device
        ).unbind()
        self._sequence_ids, self._parents = torch.zeros(2, rows, dtype=torch.int32, device=device).unbind()
        self._kv_lens = torch.zeros(sequences, dtype=torch.int32, device=device)
        self._cu_seqlens = torch.arange(0, rows + 1, width, dtype=torch.int32, device=device)
        self._real_rows = torch.zeros(1, dtype=torch.int32, device=device)
        self._yes = torch.ones(sequences, dtype=torch.bool, device=device)

    def fill(self, tasks: Sequence[Task], drafted: Drafted) -> None:
        """Copy the tasks' numbers and drafts to the device, without waiting for the copy."""
        width, count = self._width, len(tasks)
        columns = np.arange(width)
        own = np.fromiter(map(len, drafted.tokens), dtype=np.int64, count=count)[:, None]
        is_draft = (columns > 0) & (columns <= own)
        table = np.zeros((4, self._tasks.shape[1], width), dtype=np.int64)
        table[_PARENTS] = NONE
        table[_PARENTS, :count] = np.where(columns <= own, columns - 1, NONE)
        table[_DEPTHS], table[_BEFORE] = columns, columns - 1
        if drafted.parents is not None:
            for number, tokens in enumerate(drafted.tokens):
                rows = slice(1, 1 + len(tokens))
                table[(_PARENTS, _BEFORE), number, rows] = drafted.parent_rows(number)
                table[_DEPTHS, number, : rows.stop] = drafted.depths(number)
        is_known = not any(isinstance(tokens, torch.Tensor) for tokens in drafted.tokens)
        if is_known:
            table[_TOKENS, :count][is_draft] = [*chain(*drafted.tokens)]
        numbers = np.zeros((3, self._tasks.shape[1]), dtype=np.int64)
        numbers[_SLOT] = -1
        numbers[_LENGTH, :count] = [task.length for task in tasks]
        numbers[_SLOT, :count] = [task.slot for task in tasks]
        numbers[_PAGES, :count] = [len(task.pages) for task in tasks]
        tasks_sent, tables = transfer([numbers.ravel(), table.ravel()], self.device, self._pin_memory)
        self._tasks.copy_(tasks_sent.view_as(self._tasks))
        self._table.copy_(tables.view_as(self._table))
        self._parents.copy_(self._table[_BEFORE].flatten())
        if drafted.table is not None:
            self._table[_TOKENS, :count, 1:].copy_(drafted.table)
        elif not is_known:
            places = np.flatnonzero(is_draft).tolist()
            index = sent(places, torch.int64, self.device, pin_memory=self._pin_memory)
            self._table[_TOKENS].view(-1)[index] = flat_tokens(drafted, self.device)

    def set_chains(self) -> None:
        """Let all rows form chains from now on; see `take`."""
        self.set_branches(1)

    def set_branches(self, branches: int) -> None:
        """Let all rows form trees from now on: after a tree's first row, its branches are chains."""
        before = (self._columns - branches).clamp(min=0)
        before[0] = -1
        self._table[_BEFORE] = before
        self._table[_PARENTS] = before
        self._table[_DEPTHS] = (self._columns + branches - 1) // branches
        self._parents.copy_(self._table[_BEFORE].flatten())

    def take(self, numbers: torch.Tensor, tokens: torch.Tensor, counts: torch.Tensor | None = None) -> None:
        """Take sequences from tensors on the device; replaces `fill`.

        Args:
            numbers: [3, N] int64, each sequence's length, slot (-1 for padding) and number of pages.
            tokens: [N, X] int64, the token of each row; the first is the newest token of the slot.
            counts: [N] int64, each sequence's rows; None if no row is padding.
        """
        count = numbers.shape[1]
        self._tasks[:, :count].copy_(numbers)
        self._table[_TOKENS, :count].copy_(tokens)
        if counts is not None:
            parents = self._table[_BEFORE, :count].where(self._columns < counts.unsqueeze(1), NONE)
            self._table[_PARENTS, :count].copy_(parents)

    def step(self, sequences: int, tokens: int) -> Step:
        """The step of the first `sequences` sequences, with caches of up to `tokens` tokens."""
        table = self._page_table.new_zeros(sequences, pages_of(tokens, self._page_size))
        rows = slice(0, sequences * self._width)
        return Step(
            input_ids=self._ids[rows].unsqueeze(0),
            position_ids=self._positions[rows].unsqueeze(0),
            sequence_ids=self._sequence_ids[rows].unsqueeze(0),
            kv_rows=self._kv_rows[rows],
            logit_rows=self._rows[rows],
            logit_slots=self._tasks[_SLOT, :sequences],
            parts=(self._part(table, (0,) * sequences),),
            real_rows=self._real_rows,
            drafts=DraftRows(
                self._rows[rows].view(sequences, self._width),
                self._table[_PARENTS, :sequences],
                (self._width,) * sequences,
                self._are_trees,
            ),
        )

    def part(self, step: Step, tasks: Sequence[Task]) -> Part:
        """The only part of a step, with the lengths of these tasks."""
        return self.part_of(step, [task.length for task in tasks])

    def part_of(self, step: Step, lengths: Sequence[int], *, bounded: bool = False) -> Part:
        """The only part of a step, with these lengths of sequences, which are upper bounds if `bounded`."""
        (made,) = step.parts
        assert made.pages is not None
        own = [length + self._width for length in lengths]
        padding = [0] * (len(made.lengths) - len(own))
        part = self._part(made.pages.page_table, (*own, *padding))
        if not bounded:
            return part
        assert part.pages is not None
        return replace(part, pages=replace(part.pages, kv_bounds=True))

    @property
    def numbers(self) -> torch.Tensor:
        """[3, sequences] int64, as in `take`."""
        return self._tasks

    @property
    def newest(self) -> torch.Tensor:
        """[sequences] int64, the first token of each sequence's rows."""
        return self._ids.view(-1, self._width)[:, 0]

    def derive(self, step: Step) -> None:
        """Compute the remaining inputs on the device."""
        (part,) = step.parts
        assert part.pages is not None
        count = len(part.lengths)
        lengths, slots, owned = self._tasks[:, :count]
        tokens, _, depths, _ = self._table[:, :count]
        owners, is_real = slots.clamp(min=0), slots >= 0
        ids = step.input_ids.view(count, -1)
        ids.copy_(tokens)
        ids[:, 0] = self._last_tokens.index_select(0, owners)
        step.position_ids.view(count, -1).copy_(lengths.unsqueeze(1) + depths)
        pages = part.pages.page_table
        width = min(pages.shape[1], self._page_table.shape[1])
        table, is_owned = self._page_table.index_select(0, owners), self._page_numbers < owned.unsqueeze(1)
        pages.copy_(table[:, :1].expand_as(pages))
        pages[:, :width] = torch.where(is_owned, table, table[:, :1])[:, :width]
        places = lengths.unsqueeze(1) + self._columns
        numbers = places // self._page_size
        page = pages.gather(1, numbers.clamp(max=pages.shape[1] - 1)).long()
        has_place = (numbers < owned.unsqueeze(1)) & is_real.unsqueeze(1)
        kv_rows = page * self._page_size + places % self._page_size
        step.kv_rows.view(count, -1).copy_(kv_rows * has_place)
        part.pages.kv_lens.copy_((lengths + self._width) * is_real)
        step.sequence_ids.view(count, -1).copy_(slots.unsqueeze(1).expand(-1, self._width))
        self._real_rows.copy_(is_real.sum() * self._width)
        if self._deferred is not None:
            assert part.deferred is not None
            self._deferred.take(slots, part.deferred)

    def _part(self, table: torch.Tensor, lengths: tuple[int, ...]) -> Part:
        count = len(lengths)
        rows = slice(0, count * self._width)
        part = part_of(
            "verify",
            rows,
            seqlens=(self._width,) * count,
            cu_seqlens=self._cu_seqlens[: count + 1],
            slots=self._tasks[_SLOT, :count],
            has_initial_state=self._yes[:count],
            page_table=table,
            kv_lens=self._kv_lens[:count],
            kv_seqlens=lengths,
            parents=self._parents[rows],
            are_trees=self._are_trees,
        )
        if self._deferred is None:
            return part
        assert isinstance(part.states, VerifyBatch)
        tables = self._pending_records[:count], self._pending_rows[:count], self._records[:count]
        return replace(part, deferred=self._deferred.defer(part.states, tables))
