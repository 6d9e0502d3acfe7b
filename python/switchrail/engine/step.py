"""The inputs of one forward pass: rows, positions, and the memory of each sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from switchrail.dispatch import Part
from switchrail.engine.drafts import NONE, Drafted, Verified
from switchrail.engine.scheduler import Schedule
from switchrail.engine.speculation import flat_tokens
from switchrail.engine.transfer import transfer
from switchrail.errors import DispatchError
from switchrail.ops.batch import PagedBatch, PagedTreeBatch, Phase, StateBatch, VerifyBatch


@dataclass(frozen=True, slots=True)
class DraftRows:
    """The rows to verify of a step's first N sequences, in tables of X columns.

    Attributes:
        rows: [N, X] int64, the rows of each sequence in the step, including its padding rows. Unused entries
            repeat the sequence's first row.
        parents: [N, X] int64, the column of the row that each row follows; -1 for the first row, `NONE` for
            padding rows and unused entries.
        widths: The number of rows of each sequence in the step, padding included.
        are_trees: Whether the rows may form trees. If so, keys and values of accepted rows are moved within
            the caches.
    """

    rows: torch.Tensor
    parents: torch.Tensor
    widths: tuple[int, ...]
    are_trees: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One forward pass over T rows.

    Attributes:
        input_ids: [1, T] int64.
        position_ids: [1, T] int64, counted from each sequence's start.
        sequence_ids: [1, T] int32, equal for rows of one sequence.
        kv_rows: [T] int64, the row of the caches where each token's key and value are written: the page times
            the page size, plus the place in the page.
        logit_rows: [R] int64, the rows whose logits are needed, including padding.
        logit_slots: int64, the slots of the sequences with `logit_rows`; -1 for padding sequences.
        parts: First the decode rows (with drafts, the rows to verify), then the prefill rows. A phase without
            rows has no part.
        real_rows: [1] int32, the number of rows before the final padding (rows of padding sequences, or of no
            sequence). None if the step can have no such rows.
        drafts: The rows to verify; None if the step verifies no drafts.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    sequence_ids: torch.Tensor
    kv_rows: torch.Tensor
    logit_rows: torch.Tensor
    logit_slots: torch.Tensor
    parts: tuple[Part, ...]
    real_rows: torch.Tensor | None = None
    drafts: DraftRows | None = None


@dataclass(frozen=True, slots=True)
class Ran:
    """A step that was launched. The next step may overwrite the tensors.

    Attributes:
        logits: [R, vocabulary]: one row per decoding task, or the rows of a verification; then one per task
            whose prompt ends in the step.
        slots: The slots of these tasks, int64.
        widths: The number of rows of logits of each verified task, with padding; empty without drafts.
        accept: Commits the accepted drafts, given the tokens chosen after the verified rows; see
            `switchrail.engine.accept`. None without drafts.
        choose: Replays the graph that chooses the likeliest tokens and stores them as the newest tokens.
            Returns the result of `switchrail.engine.sampling.choose`, [R] int64, or for a verification the
            result of `accept`. None if there is no such graph.
        verified: The tokens that a captured verification of greedy tasks accepts; None for other steps.
    """

    logits: torch.Tensor
    slots: torch.Tensor
    widths: tuple[int, ...] = ()
    accept: Callable[[torch.Tensor], torch.Tensor] | None = None
    choose: Callable[[], torch.Tensor] | None = None
    verified: Verified | None = None


class Running:
    """The current step, for the functions that a model's layers call."""

    def __init__(self) -> None:
        self.now: Step | None = None

    @property
    def step(self) -> Step:
        """The current step.

        Raises:
            DispatchError: No step is running, because the engine's model was not called by the engine.
        """
        if self.now is None:
            raise DispatchError(
                "a layer of an engine's model ran outside of a step; call the engine, not its model"
            )
        return self.now


def part_of(
    phase: Phase,
    rows: slice,
    *,
    seqlens: tuple[int, ...],
    cu_seqlens: torch.Tensor,
    slots: torch.Tensor,
    has_initial_state: torch.Tensor,
    page_table: torch.Tensor,
    kv_lens: torch.Tensor,
    kv_seqlens: tuple[int, ...],
    parents: torch.Tensor | None = None,
    parent_rows: tuple[int, ...] | None = None,
    are_trees: bool = False,
    read_slots: torch.Tensor | None = None,
) -> Part:
    """A part of a step, for sequences with pages and state slots. Only verifications have parent rows."""
    states: dict[str, Any] = {
        "cu_seqlens": cu_seqlens,
        "seqlens": seqlens,
        "read_slots": slots if read_slots is None else read_slots,
        "write_slots": slots,
        "has_initial_state": has_initial_state,
    }
    pages: dict[str, Any] = {
        "cu_seqlens": cu_seqlens,
        "seqlens": seqlens,
        "page_table": page_table,
        "kv_lens": kv_lens,
        "kv_seqlens": kv_seqlens,
    }
    if parents is None:
        return Part(phase=phase, rows=rows, states=StateBatch(**states), pages=PagedBatch(**pages))
    tree: dict[str, Any] = {"parents": parents, "parent_rows": parent_rows}
    return Part(
        phase=phase,
        rows=rows,
        states=VerifyBatch(**states, **tree),
        pages=PagedTreeBatch(**pages, **tree) if are_trees else PagedBatch(**pages),
    )


class StepBuilder:
    """Converts schedules to tensors on the device, with one transfer for a step without drafts."""

    def __init__(self, *, num_slots: int, page_size: int, device: torch.device, pin_memory: bool) -> None:
        """Allocate the tensors that all steps share.

        Args:
            num_slots: The number of slots, including the reserved one.
            page_size: Page size in tokens.
            device: The device of the model.
            pin_memory: Whether the device copies from pinned memory asynchronously.
        """
        self._page_size = page_size
        self._device = device
        self._pin_memory = pin_memory
        self._count = torch.arange(num_slots + 1, dtype=torch.int32, device=device)
        self._yes = torch.ones(num_slots, dtype=torch.bool, device=device)

    def build(
        self,
        schedule: Schedule,
        page_table: torch.Tensor,
        last_tokens: torch.Tensor,
        *,
        rows: int = 0,
        logits: int = 0,
    ) -> Step:
        """Convert a schedule to a step.

        Args:
            schedule: The tasks to run.
            page_table: [slots, pages] int32, the pages of the sequence in each slot.
            last_tokens: [slots] int64, the newest token of the sequence in each slot.
            rows: The least number of rows; padding rows are added if the schedule has fewer. Their keys and
                values go to page 0, and they belong to no part.
            logits: The least length of `logit_rows`, which is padded likewise; `logit_slots` is not padded.
        """
        decode, prefill, drafted = schedule.decode, schedule.prefill, schedule.drafted
        n_decode = len(decode)
        tasks = decode + [task for task, _ in prefill]
        slots = np.array([task.slot for task in tasks], dtype=np.int64)
        before = np.array([task.length for task in tasks], dtype=np.int64)
        own = [1] * n_decode if drafted is None else [1 + len(tokens) for tokens in drafted.tokens]
        counts = np.array(own + [count for _, count in prefill], dtype=np.int64)
        ends = counts.cumsum()
        starts = ends - counts
        d_rows = sum(own)
        after = before + counts
        prompts = [task.ids[task.length : task.length + count] for task, count in prefill]
        finishing = [task.length + count == len(task.ids) for task, count in prefill]
        wanted = np.array([True] * n_decode + finishing, dtype=bool)
        cu_prefill = np.zeros(len(prompts) + 1, dtype=np.int32)
        cu_prefill[1:] = ends[n_decode:] - d_rows
        read = np.concatenate([np.arange(d_rows), ends[n_decode:][wanted[n_decode:]] - 1])
        padding = np.zeros(max(0, rows - int(ends[-1])), dtype=np.int64)
        unread = np.zeros(max(0, logits - len(read)), dtype=np.int64)
        places = np.arange(ends[-1]) + (before - starts).repeat(counts)

        ids, positions, row_slots, d_slots, logit_rows, logit_slots, kv_lens, cu_seqlens, started = transfer(
            [
                np.concatenate([np.zeros(d_rows, dtype=np.int64), *prompts, padding]),
                np.concatenate([places, padding]),
                np.concatenate([slots.repeat(counts), padding]),
                slots,
                np.concatenate([read, unread]),
                slots[wanted],
                after.astype(np.int32),
                cu_prefill,
                before[n_decode:] > 0,
            ],
            self._device,
            self._pin_memory,
        )
        pages = page_table[:, : -(-int(after.max()) // self._page_size)]
        page = pages[row_slots, positions // self._page_size].long()
        kv_rows = page * self._page_size + positions % self._page_size
        kv_seqlens = after.tolist()
        table = pages[d_slots]

        def part(
            phase: Phase, sequences: slice, cu_seqlens: torch.Tensor, initial: torch.Tensor, **tree: Any
        ) -> Part:
            return part_of(
                phase,
                slice(int(starts[sequences][0]), int(ends[sequences][-1])),
                seqlens=tuple(counts[sequences].tolist()),
                cu_seqlens=cu_seqlens,
                slots=d_slots[sequences],
                has_initial_state=initial,
                page_table=table[sequences],
                kv_lens=kv_lens[sequences],
                kv_seqlens=tuple(kv_seqlens[sequences]),
                **tree,
            )

        parts = []
        decoding, yes = slice(0, n_decode), self._yes[:n_decode]
        drafts = None
        if drafted is not None:
            drafts, trees, firsts, news, draft_positions = self._draft_rows(
                drafted, starts[:n_decode], before[:n_decode], own
            )
            ids[firsts[:-1]] = last_tokens[d_slots[:n_decode]]
            ids[news] = flat_tokens(drafted, self._device)
            positions = torch.cat([draft_positions, positions[d_rows:]])
            parts.append(part("verify", decoding, firsts, yes, **trees))
        elif n_decode:
            ids[:n_decode] = last_tokens[d_slots[:n_decode]]
            parts.append(part("decode", decoding, self._count[: n_decode + 1], yes))
        if prompts:
            parts.append(part("prefill", slice(n_decode, len(tasks)), cu_seqlens, started))
        return Step(
            input_ids=ids.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            sequence_ids=row_slots.int().unsqueeze(0),
            kv_rows=kv_rows,
            logit_rows=logit_rows,
            logit_slots=logit_slots,
            parts=tuple(parts),
            drafts=drafts,
        )

    def _draft_rows(
        self, drafted: Drafted, starts: npt.NDArray[np.int64], before: npt.NDArray[np.int64], own: list[int]
    ) -> tuple[DraftRows, dict[str, Any], torch.Tensor, torch.Tensor, torch.Tensor]:
        """Describe the rows of a verification.

        Args:
            drafted: The drafted tokens of N sequences.
            starts: [N], the first row of each sequence.
            before: [N], the length of each sequence.
            own: The number of rows of each sequence.

        Returns:
            The rows; the arguments for `part_of`; the sequences' first rows, then the number of all rows,
            [N + 1] int32; the rows of the drafts, [D] int64; and the positions of all rows, int64.
        """
        parent_rows = tuple(chain(*((-1, *drafted.parent_rows(number)) for number in range(len(own)))))
        depths = chain(*(drafted.depths(number) for number in range(len(own))))
        count = sum(own)
        columns = np.arange(max(own))
        is_row = columns < np.array(own)[:, None]
        table = np.full(is_row.shape, NONE)
        table[is_row] = parent_rows
        firsts, tree, rows, parents, news, positions = transfer(
            [
                np.append(starts, count).astype(np.int32),
                np.array(parent_rows, dtype=np.int32),
                (starts[:, None] + np.where(is_row, columns, 0)).ravel(),
                table.ravel(),
                np.delete(np.arange(count), starts),
                np.array([*depths]) + before.repeat(own),
            ],
            self._device,
            self._pin_memory,
        )
        are_trees = drafted.parents is not None
        drafts = DraftRows(rows.view(is_row.shape), parents.view(is_row.shape), tuple(own), are_trees)
        trees = {"parents": tree, "parent_rows": parent_rows, "are_trees": are_trees}
        return drafts, trees, firsts, news, positions
