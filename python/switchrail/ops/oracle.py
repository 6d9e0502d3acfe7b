"""The token-by-token loop of references with a state, and the positions visible to rows of a paged batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch

from switchrail.ops.backend import Backend, foreign
from switchrail.ops.batch import (
    CheckpointBatch,
    DeferredBatch,
    PagedBatch,
    PagedTreeBatch,
    RowStatesBatch,
    StateBatch,
    VerifyBatch,
)
from switchrail.ops.call import CallT
from switchrail.ops.contract import Contract

Token = Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]
"""Maps the state before a packed row (float64) and the row's index to the next state and the row's result."""


def _walk(
    batch: StateBatch, state: torch.Tensor, out: torch.Tensor, token: Token
) -> list[list[torch.Tensor]]:
    """Runs every row of a batch and writes its result.

    Args:
        batch: The sequences. In verification a row follows its parent; otherwise it follows the row before
            it.
        state: The pool [slots, ...], which is only read.
        out: [T, ...].
        token: Computes one row.

    Returns:
        For each sequence, the state before its first row and the state after each row; an empty list for
        padding.
    """
    states: list[list[torch.Tensor]] = []
    row = 0
    for n, length in enumerate(batch.seqlens):
        rows = range(row, row + length)
        row += length
        if batch.read_slots[n] <= batch.null_slot:
            out[rows.start : rows.stop] = 0
            states.append([])
            continue
        first = torch.zeros(state.shape[1:], dtype=torch.float64, device=state.device)
        if length and batch.has_initial_state[n]:
            first = state[batch.read_slots[n]].double()
        after = [first]
        results = []
        for i, t in enumerate(rows):
            parent = int(batch.parents[t]) if isinstance(batch, VerifyBatch) else i - 1
            s, result = token(after[parent + 1], t)
            results.append(result)
            after.append(s)
        if results:
            out[rows.start : rows.stop] = torch.stack(results).to(out.dtype)
        states.append(after)
    return states


def seen_by(batch: PagedBatch, n: int, i: int, row: int, window: int | None = None) -> slice | list[int]:
    """The positions visible to row i of sequence n, which is the packed row `row`; none for padding."""
    past = int(batch.kv_lens[n]) - batch.seqlens[n]
    if batch.kv_lens[n] == 0:
        return slice(0)
    if not isinstance(batch, PagedTreeBatch):
        return slice(0 if window is None else max(0, past + i + 1 - window), past + i + 1)
    followed = [i]
    while (parent := int(batch.parents[row - i + followed[-1]])) >= 0:
        followed.append(parent)
    return [*range(past), *(past + r for r in followed)]


class ReferenceRecurrent(Backend[CallT, StateBatch]):
    """Runs a reference row by row, and writes its states to the pool."""

    contract: ClassVar[Contract]

    @abstractmethod
    def token_of(self, call: CallT) -> Token:
        """The function that runs one row of a call."""

    def run(self, call: CallT, batch: StateBatch, plan: object) -> list[list[torch.Tensor]] | None:
        """Run T packed tokens of N sequences of any length, drafted if the batch is a `VerifyBatch`.

        Returns:
            In verification, the states, which are the record for `commit`; None in other phases, and if there
            is no commit.
        """
        self.contract.check("verify" if isinstance(batch, VerifyBatch) else "prefill", call, batch)
        state = call[0].state
        if isinstance(batch, DeferredBatch):
            self._run_deferred(call, batch)
            return None
        states = _walk(batch, state, call[-1], self.token_of(call))
        if isinstance(batch, VerifyBatch) and not isinstance(batch, RowStatesBatch):
            return states
        rows = getattr(call[0], "row_states", None)
        for n, after in enumerate(states):
            if isinstance(batch, RowStatesBatch):
                _write(state if rows is None else rows, batch, batch.row_slots[n], after[1:])
                continue
            if len(after) > 1:
                _write(state, batch, batch.write_slots[n : n + 1], after[-1:])
            if isinstance(batch, CheckpointBatch):
                kept = after[batch.checkpoint_every :: batch.checkpoint_every]
                _write(state, batch, batch.checkpoint_slots[n], kept)
        return None

    def _run_deferred(self, call: CallT, batch: DeferredBatch) -> None:
        """Apply the pending records, then run the rows and keep the states after them."""
        kept: dict[int, list[torch.Tensor]] = call[0].kept.setdefault(ReferenceRecurrent, {})
        state = call[0].state
        for n, record in enumerate(batch.pending_records.tolist()):
            if record >= 0:
                last = int(batch.pending_rows[n].nonzero()[-1])
                _write(state, batch, batch.write_slots[n : n + 1], [kept[record][last]])
        for n, after in enumerate(_walk(batch, state, call[-1], self.token_of(call))):
            if batch.records[n] >= 0:
                kept[int(batch.records[n])] = after[1:]

    def commit(
        self, call: CallT, batch: VerifyBatch, plan: object, record: object, accepted: torch.Tensor
    ) -> None:
        """Write each sequence's state after its last accepted row."""
        if not isinstance(record, list):
            raise foreign("record", record)
        state = call[0].state
        for n, after in enumerate(record):
            if len(after) > 1:
                _write(state, batch, batch.write_slots[n : n + 1], [after[int(accepted[n]) + 1]])


def _write(
    pool: torch.Tensor, batch: StateBatch, slots: torch.Tensor, states: Sequence[torch.Tensor]
) -> None:
    for slot, s in zip(slots.tolist(), states, strict=False):
        if slot > batch.null_slot:
            pool[slot] = s.to(pool.dtype)
