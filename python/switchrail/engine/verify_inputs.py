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
from switchrail.engine.inputs import Tables
from switchrail.engine.speculation import flat_tokens
from switchrail.engine.step import DraftRows, Step, part_of
from switchrail.engine.task import Task
from switchrail.engine.transfer import sent
from switchrail.ops.batch import VerifyBatch
from switchrail.platforms.serving import Forward
from switchrail.pools import pages_of

_LENGTH, _SLOT, _PAGES = range(3)
_TOKENS, _DEPTHS, _PARENTS = range(3)


class VerifyInputs:
    """Inputs with X rows per sequence, padded after a sequence's last draft and after the last sequence.

    The cache length of a sequence includes its padding rows, so backends read the keys and values of padding
    rows too, with weight 0. Padding rows write to the cache rows of the sequence's next tokens. Past the
    sequence's last page they write to page 0, and backends read the sequence's first page there. So a
    sequence reads only values that it has written. Rows of padding sequences write to page 0.

    The device derives most inputs from a few numbers per row and from the page table (`derive`), so a step
    usually needs only one transfer.

    Attributes:
        device: The device of the model.
        width: X, the number of rows per sequence.
        deferred: The commits that are left to the next verification; None if no commits are deferred.
    """

    def __init__(
        self,
        tables: Tables,
        *,
        width: int,
        are_trees: bool,
        derived: Forward,
        deferred: DeferredCommits | None = None,
    ) -> None:
        """Allocate the tensors.

        Args:
            tables: The tables.
            width: X.
            are_trees: Whether drafts may be trees.
            derived: The function for the operation `VerifyRows`.
            deferred: See the attribute.
        """
        self.device, self.width, self.deferred = tables.device, width, deferred
        sequences, device = tables.sequences, tables.device
        self._derived = derived
        self._pending_records, self._records = torch.full(
            (2, sequences), -1, dtype=torch.int64, device=device
        ).unbind()
        self._pending_rows = torch.zeros(sequences, width, dtype=torch.bool, device=device)
        self._page_table, self._last_tokens = tables.page_table, tables.last_tokens
        self._page_size, self._pin_memory = tables.page_size, tables.pin_memory
        self._are_trees = are_trees
        self._columns = torch.arange(width, dtype=torch.int64, device=device)
        rows = sequences * width
        self._sizes = [3 * sequences, 3 * rows, -(-rows // 2)]
        self._numbers = torch.zeros(sum(self._sizes), dtype=torch.int64, device=device)
        tasks, table, parents = torch.split(self._numbers, self._sizes)
        self._tasks, self._table = tasks.view(3, sequences), table.view(3, sequences, width)
        self._parents = parents.view(torch.int32)[:rows]
        self._tasks[_SLOT] = -1
        self._rows = torch.arange(rows, dtype=torch.int64, device=device)
        self._ids, self._positions, self._kv_rows = torch.zeros(
            3, rows, dtype=torch.int64, device=device
        ).unbind()
        self._sequence_ids = torch.zeros(rows, dtype=torch.int32, device=device)
        self._kv_lens = torch.zeros(sequences, dtype=torch.int32, device=device)
        self._cu_seqlens = torch.arange(0, rows + 1, width, dtype=torch.int32, device=device)
        self._real_rows = torch.zeros(1, dtype=torch.int32, device=device)
        self._yes = torch.ones(sequences, dtype=torch.bool, device=device)

    def fill(self, tasks: Sequence[Task], drafted: Drafted) -> None:
        """Copy the tasks' lengths, slots, page counts and drafts to the device, without waiting."""
        width, count = self.width, len(tasks)
        # torch's cache of pinned memory reuses a block only after the copy from it has finished
        host = torch.zeros(len(self._numbers), dtype=torch.int64, pin_memory=self._pin_memory)
        numbers, flat, last = (part.numpy() for part in torch.split(host, self._sizes))
        numbers, table = numbers.reshape(self._tasks.shape), flat.reshape(self._table.shape)
        before = last.view(np.int32)[: self._parents.shape[0]].reshape(-1, width)
        columns = np.arange(width)
        own = np.fromiter(map(len, drafted.tokens), dtype=np.int64, count=count)[:, None]
        is_draft = (columns > 0) & (columns <= own)
        table[_PARENTS] = NONE
        table[_PARENTS, :count] = np.where(columns <= own, columns - 1, NONE)
        table[_DEPTHS], before[:] = columns, columns - 1
        if drafted.parents is not None:
            for number, tokens in enumerate(drafted.tokens):
                rows = slice(1, 1 + len(tokens))
                table[_PARENTS, number, rows] = before[number, rows] = drafted.parent_rows(number)
                table[_DEPTHS, number, : rows.stop] = drafted.depths(number)
        is_known = not any(isinstance(tokens, torch.Tensor) for tokens in drafted.tokens)
        if is_known:
            table[_TOKENS, :count][is_draft] = [*chain(*drafted.tokens)]
        numbers[_SLOT] = -1
        numbers[_LENGTH, :count] = [task.length for task in tasks]
        numbers[_SLOT, :count] = [task.slot for task in tasks]
        numbers[_PAGES, :count] = [len(task.pages) for task in tasks]
        self._numbers.copy_(host, non_blocking=True)
        if drafted.table is not None:
            self._table[_TOKENS, :count, 1:].copy_(drafted.table)
        elif not is_known:
            index = sent(np.flatnonzero(is_draft), torch.int64, self.device, pin_memory=self._pin_memory)
            self._table[_TOKENS].view(-1)[index] = flat_tokens(drafted, self.device)

    def set_branches(self, branches: int) -> None:
        """Set the parents for `take`: in each sequence, `branches` chains follow the first row."""
        before = (self._columns - branches).clamp(min=0)
        before[0] = -1
        self._table[_PARENTS] = before
        self._table[_DEPTHS] = (self._columns + branches - 1) // branches
        self._parents.view(-1, self.width).copy_(before)

    def take(self, numbers: torch.Tensor, tokens: torch.Tensor, counts: torch.Tensor | None = None) -> None:
        """Fill the inputs from tensors on the device, instead of calling `fill`.

        Args:
            numbers: [3, N] int64, each sequence's length, slot (-1 for padding) and number of pages.
            tokens: [N, X] int64, the token of each row; `derive` replaces the first by the newest token.
            counts: [N] int64, each sequence's rows; None if no row is padding.
        """
        count = numbers.shape[1]
        self._tasks[:, :count].copy_(numbers)
        self._table[_TOKENS, :count].copy_(tokens)
        if counts is not None:
            before = self._parents.view(-1, self.width)[:count]
            parents = before.where(self._columns < counts.unsqueeze(1), NONE)
            self._table[_PARENTS, :count].copy_(parents)

    def step(self, sequences: int, tokens: int) -> Step:
        """The step of the first `sequences` sequences, with caches of up to `tokens` tokens."""
        table = self._page_table.new_zeros(sequences, pages_of(tokens, self._page_size))
        rows = slice(0, sequences * self.width)
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
                self._rows[rows].view(sequences, self.width),
                self._table[_PARENTS, :sequences],
                (self.width,) * sequences,
                self._are_trees,
            ),
        )

    def part(self, step: Step, lengths: Sequence[int], *, bounded: bool = False) -> Part:
        """The part of a step made by `step`, given the sequences' lengths (upper bounds with `bounded`)."""
        (made,) = step.parts
        assert made.pages is not None
        own = [length + self.width for length in lengths]
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
        return self._ids.view(-1, self.width)[:, 0]

    def derive(self, step: Step) -> None:
        """Compute the remaining inputs on the device."""
        (part,) = step.parts
        assert part.pages is not None
        count = len(part.lengths)
        pending = None
        if self.deferred is not None:
            assert part.deferred is not None
            made = part.deferred
            pending = (
                *(self.deferred.records, self.deferred.rows),
                *(made.pending_records, made.pending_rows, made.records),
            )
        self._derived(
            self._tasks[:, :count],
            self._table[: _DEPTHS + 1, :count],
            self._last_tokens,
            self._page_table,
            page_size=self._page_size,
            pending=pending,
            out=(
                *(step.input_ids[0], step.position_ids[0], part.pages.page_table, step.kv_rows),
                *(part.pages.kv_lens, step.sequence_ids[0], self._real_rows),
            ),
        )

    def _part(self, table: torch.Tensor, lengths: tuple[int, ...]) -> Part:
        count = len(lengths)
        rows = slice(0, count * self.width)
        part = part_of(
            "verify",
            rows,
            seqlens=(self.width,) * count,
            cu_seqlens=self._cu_seqlens[: count + 1],
            slots=self._tasks[_SLOT, :count],
            has_initial_state=self._yes[:count],
            page_table=table,
            kv_lens=self._kv_lens[:count],
            kv_seqlens=lengths,
            parents=self._parents[rows],
            are_trees=self._are_trees,
        )
        if self.deferred is None:
            return part
        assert isinstance(part.states, VerifyBatch)
        tables = self._pending_records[:count], self._pending_rows[:count], self._records[:count]
        return replace(part, deferred=self.deferred.defer(part.states, tables))


def verify_rows(
    tasks: torch.Tensor,
    drafts: torch.Tensor,
    last_tokens: torch.Tensor,
    page_table: torch.Tensor,
    *,
    page_size: int,
    pending: Sequence[torch.Tensor] | None,
    out: Sequence[torch.Tensor],
) -> None:
    """Compute a captured verification's inputs, for X rows of each of N sequences, without waiting.

    Args:
        tasks: [3, N] int64, the number of cached tokens, the slot, and the number of pages of each sequence.
            Padding has slot -1 and zeros.
        drafts: [2, N, X] int64, the token of each row (ignored for the first row), and the row's depth.
        last_tokens: [slots] int64, the newest token of the sequence in each slot.
        page_table: [slots, pages] int32, the pages of the sequence in each slot. The entries of slot 0, which
            is never assigned, are page 0.
        page_size: Page size in tokens.
        pending: None without deferred commits; otherwise five tensors (for records see `DeferredCommits`):
            - [slots] int64, for each slot the record that remains to be applied, or -1. The entries of the N
              sequences are set to -1.
            - [slots, X] bool, the rows of this record to apply.
            - The last three receive the `pending_records`, `pending_rows` and `records` of a `DeferredBatch`.
              Slot s fills record 2 s, or record 2 s + 1 if record 2 s remains to be applied.
        out: Seven contiguous tensors, which receive:
            - [N * X] int64, the tokens.
            - [N * X] int64, the positions.
            - [N, P] int32, the pages of each sequence, padded with its first page.
            - [N * X] int64, the row of the caches for each token; 0 past the sequence's last page.
            - [N] int32, the number of cached tokens, including the X rows; 0 for padding.
            - [N * X] int32, the slots.
            - [1] int32, the number of rows of all sequences that are not padding: X for each.
    """
    ids, positions, pages, kv_rows, kv_lens, sequence_ids, real = out
    lengths, slots, owned = tasks
    tokens, depths = drafts
    count, width = tokens.shape
    owners, is_real = slots.clamp(min=0), slots >= 0
    ids.view(count, width).copy_(tokens)
    ids.view(count, width)[:, 0] = last_tokens.index_select(0, owners)
    positions.view(count, width).copy_(lengths.unsqueeze(1) + depths)
    most = min(pages.shape[1], page_table.shape[1])
    table = page_table.index_select(0, owners)
    is_owned = torch.arange(page_table.shape[1], device=table.device) < owned.unsqueeze(1)
    pages.copy_(table[:, :1].expand_as(pages))
    pages[:, :most] = torch.where(is_owned, table, table[:, :1])[:, :most]
    places = lengths.unsqueeze(1) + torch.arange(width, device=table.device)
    numbers = places // page_size
    page = pages.gather(1, numbers.clamp(max=pages.shape[1] - 1)).long()
    has_place = (numbers < owned.unsqueeze(1)) & is_real.unsqueeze(1)
    kv_rows.view(count, width).copy_((page * page_size + places % page_size) * has_place)
    kv_lens.copy_((lengths + width) * is_real)
    sequence_ids.view(count, width).copy_(slots.unsqueeze(1).expand(-1, width))
    real.copy_(is_real.sum() * width)
    if pending is not None:
        records, accepted, pending_records, pending_rows, own = pending
        found = records[owners].where(is_real, -1)
        pending_records.copy_(found)
        pending_rows.copy_(accepted[owners])
        own.copy_((2 * owners + (found == 2 * owners)).where(is_real, -1))
        records.index_fill_(0, owners, -1)
