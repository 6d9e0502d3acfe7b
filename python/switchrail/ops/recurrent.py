"""The common parts of the plain-torch backends with a state: plans, runs and commits."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import ClassVar

import torch

from switchrail.ops.backend import Backend, check_plan, foreign
from switchrail.ops.batch import Bounds, DeferredBatch, Phase, RowStatesBatch, StateBatch, VerifyBatch
from switchrail.ops.call import CallT
from switchrail.ops.chunks import After, ChunkPlan, Group, plan_chunks
from switchrail.ops.contract import Contract
from switchrail.ops.slots import Slots, indices, keep, normal

Step = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
"""Runs one token on each of the states [R, ...], which are updated in place. Returns the results [R, ...].

The second argument has the packed rows [R] of the tokens; None means all rows in order.
"""

RunGroup = Callable[[Group, int, torch.Tensor, After], torch.Tensor]
"""Runs the chunks of a group, of C tokens each, from the states [M, ...], which are updated in place.

Returns the results [n * C, ...], in the order of `Group.rows`. Calls the last argument after each level.
"""


@dataclass(frozen=True, slots=True)
class TreePlan:
    """The levels of drafted rows: the data that all layers of a step share in verification.

    The states are kept in a bank, which has the M initial states, then one state for each of the T rows.

    Attributes:
        seqlens: The lengths of the batch's sequences.
        slots: The initial states of the M nonempty sequences.
        sequences: [M] int64, the indices of the nonempty sequences in the batch.
        starts: [M] int64, the first row of each of these sequences.
        lengths: [M] int64, the number of rows of each of these sequences.
        levels: For each depth of the trees (for each row index, if only the device has the parents), its
            rows, and the bank index of the state before each of these rows.
        padding_rows: [T] bool, which rows are padding; None if it is known that none are.
        row_slots: [T] int64, the slot for the state after each row; None if the states are not stored by row.
    """

    seqlens: tuple[int, ...]
    slots: Slots
    sequences: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor
    levels: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    padding_rows: torch.Tensor | None
    row_slots: torch.Tensor | None


def plan_tree(contract: Contract, batch: StateBatch) -> TreePlan:
    """Sort the drafted rows of a batch into levels.

    Raises:
        ContractError: The batch breaks the contract.
    """
    contract.check_batch("verify", batch, contract.features)
    assert isinstance(batch, VerifyBatch)
    device = batch.read_slots.device
    sequences = [n for n, length in enumerate(batch.seqlens) if length]
    counts = [batch.seqlens[n] for n in sequences]
    starts = [0, *accumulate(counts)][: len(counts)]
    slots = Slots(contract, batch, sequences)
    lengths = indices(counts, device)
    total = sum(counts)
    padding_rows = row_slots = None
    if slots.padding is not None:
        padding_rows = torch.repeat_interleave(slots.padding, lengths, output_size=total)
    if isinstance(batch, RowStatesBatch):
        places = [
            n * batch.row_slots.shape[1] + i
            for n, count in zip(sequences, counts, strict=True)
            for i in range(count)
        ]
        row_slots = normal(batch.row_slots, batch).flatten().index_select(0, indices(places, device))
        if device.type == "cpu":
            _check_row_slots(contract, row_slots.tolist())
    levels = _device_levels if batch.parent_rows is None else _host_levels
    return TreePlan(
        batch.seqlens,
        slots,
        indices(sequences, device),
        indices(starts, device),
        lengths,
        levels(batch, starts, counts),
        padding_rows,
        row_slots,
    )


Levels = tuple[tuple[torch.Tensor, torch.Tensor], ...]


def _host_levels(batch: VerifyBatch, starts: list[int], counts: list[int]) -> Levels:
    """For each depth, its rows and the bank indices of the states before these rows."""
    assert batch.parent_rows is not None
    depths: list[int] = []
    before: list[int] = []
    levels: list[list[int]] = []
    for m, (start, count) in enumerate(zip(starts, counts, strict=True)):
        for row in range(start, start + count):
            parent = batch.parent_rows[row]
            depths.append(0 if parent < 0 else depths[start + parent] + 1)
            before.append(m if parent < 0 else len(starts) + start + parent)
            if depths[row] == len(levels):
                levels.append([])
            levels[depths[row]].append(row)
    device = batch.parents.device
    return tuple((indices(rows, device), indices([before[row] for row in rows], device)) for rows in levels)


def _device_levels(batch: VerifyBatch, starts: list[int], counts: list[int]) -> Levels:
    """Like `_host_levels`, but level i has row i of each sequence: a parent always precedes its row."""
    device = batch.parents.device
    levels = []
    for i in range(max(counts, default=0)):
        present = [m for m, count in enumerate(counts) if count > i]
        rows = indices([starts[m] + i for m in present], device)
        parents = batch.parents.index_select(0, rows).long()
        after = indices([len(starts) + starts[m] for m in present], device) + parents
        levels.append((rows, torch.where(parents < 0, indices(present, device), after)))
    return tuple(levels)


def _check_row_slots(contract: Contract, slots: list[int]) -> None:
    used = sorted(slot for slot in slots if slot >= 0)
    for slot, other in pairwise(used):
        if slot == other:
            raise contract.error("batch.row_slots", f"slot {slot} twice", "a different slot for each state")


class TorchRecurrent(Backend[CallT, StateBatch]):
    """Plans the calls of an op with a state, and commits drafted rows."""

    contract: ClassVar[Contract]
    chunk: ClassVar[int]

    def plan(self, phase: Phase, batch: StateBatch, bounds: Bounds | None = None) -> object:
        """Split the sequences into chunks, or the drafted rows into levels."""
        if phase == "verify":
            return plan_tree(self.contract, batch)
        return plan_chunks(self.contract, phase, batch, self.chunk)

    def commit(
        self, call: CallT, batch: VerifyBatch, plan: object, record: object, accepted: torch.Tensor
    ) -> None:
        """Write the state after each sequence's last accepted row."""
        self.contract.check_accepted(batch, accepted)
        if not isinstance(plan, TreePlan):
            raise foreign("plan", plan)
        if not isinstance(record, torch.Tensor):
            raise foreign("record", record)
        last = accepted.index_select(0, plan.sequences)
        if last.device.type == "cpu":
            wrong = (last < -1) | (last >= plan.lengths)
            if plan.slots.padding is not None:
                wrong &= ~plan.slots.padding
            for m in wrong.nonzero()[:, 0].tolist():
                raise self.contract.error(
                    "accepted",
                    f"{int(last[m])} for sequence {int(plan.sequences[m])}",
                    f"-1 to {int(plan.lengths[m]) - 1}, a row of the sequence or none",
                )
        count = len(plan.sequences)
        initial = torch.arange(count, device=last.device)
        place = count + plan.starts + last.minimum(plan.lengths - 1)
        states = record.index_select(0, torch.where(last < 0, initial, place))
        plan.slots.store(self.pool(call), states)

    def pool(self, call: CallT) -> torch.Tensor:
        """The layer's pool of states, with the axes in the order that the computation uses."""
        state: torch.Tensor = call[0].state
        return state

    def row_pool(self, call: CallT) -> torch.Tensor:
        """The pool of the states after drafted rows: `row_states`, or the pool of states if this is None."""
        rows: torch.Tensor | None = getattr(call[0], "row_states", None)
        return call[0].state if rows is None else rows


class TorchChunked(TorchRecurrent[CallT]):
    """Chunks for long sequences, the recurrence for single tokens, and a tree walk for drafted tokens.

    Computes in float32, or in float64 for float64 inputs.
    """

    @abstractmethod
    def prepare(self, call: CallT, compute: torch.dtype) -> tuple[Step, RunGroup]:
        """The recurrence and the chunked form for a call, both computing in dtype `compute`."""

    def run(self, call: CallT, batch: StateBatch, plan: ChunkPlan | TreePlan) -> torch.Tensor | None:
        """Run T packed tokens of N sequences of any length, or drafted tokens if the plan is for them."""
        self.contract.check_call(call, batch, self.contract.feature_names)
        check_plan(plan, batch, (ChunkPlan,), TreePlan)
        state, out = self.pool(call), call[-1]
        compute = torch.promote_types(out.dtype, torch.float32)
        step, run_group = self.prepare(call, compute)
        if isinstance(batch, DeferredBatch):
            assert isinstance(plan, TreePlan)
            self._run_deferred(call, batch, plan, compute, step)
            return None
        if isinstance(plan, TreePlan):
            return run_tree(plan, state, self.row_pool(call), out, compute, step)
        if plan.positions is None:
            _run_single(plan, state, out, compute, step)
            return None
        states = plan.slots.load(state, compute)
        after = partial(plan.keep, state)
        plan.write([run_group(group, plan.chunk, states, after) for group in plan.groups], out)
        plan.slots.store(state, states)
        return None

    def _run_deferred(
        self, call: CallT, batch: DeferredBatch, plan: TreePlan, compute: torch.dtype, step: Step
    ) -> None:
        """Apply the pending records, then run the rows and keep the states after them."""
        state, kept, most = self.pool(call), call[0].kept, batch.pending_rows.shape[1]
        pool = kept.get(TorchChunked)
        if pool is None:
            shape = batch.record_count * most, *state.shape[1:]
            pool = kept[TorchChunked] = torch.empty(shape, dtype=compute, device=state.device)
        pending, records = batch.pending_records.long(), batch.records.long()
        columns = torch.arange(most, device=state.device)
        last = (batch.pending_rows * columns).amax(1)
        accepted = pool.index_select(0, pending.clamp(min=0) * most + last)
        keep(state, accepted, batch.write_slots.long().masked_fill(pending < 0, -1))
        after = run_tree(plan, state, state, call[-1], compute, step)
        assert after is not None
        index = plan.sequences.repeat_interleave(plan.lengths, output_size=len(call[-1]))
        own = records[index]
        place = torch.arange(len(index), device=state.device) - plan.starts.repeat_interleave(
            plan.lengths, output_size=len(index)
        )
        keep(pool, after[len(plan.sequences) :], (own * most + place).masked_fill(own < 0, -1))


def _run_single(
    plan: ChunkPlan, state: torch.Tensor, out: torch.Tensor, dtype: torch.dtype, step: Step
) -> None:
    """Run one token of each nonempty sequence, computing in `dtype`."""
    if len(out) == 0:
        return
    states = plan.slots.load(state, dtype)
    plan.write_rows(step(states, None), out)
    plan.keep(state, 0, states)
    plan.slots.store(state, states)


def run_tree(
    plan: TreePlan,
    state: torch.Tensor,
    row_states: torch.Tensor,
    out: torch.Tensor,
    dtype: torch.dtype,
    step: Step,
) -> torch.Tensor | None:
    """Run drafted rows, computing in `dtype`.

    Returns:
        The bank (see `TreePlan`); None if the states are stored by row.
    """
    count = len(plan.sequences)
    bank = torch.empty(count + len(out), *state.shape[1:], dtype=dtype, device=state.device)
    bank[:count] = plan.slots.load(state, dtype, copy=True)
    for rows, before in plan.levels:
        states = bank.index_select(0, before)
        out.index_copy_(0, rows, step(states, rows).to(out.dtype))
        bank.index_copy_(0, rows + count, states)
    if plan.padding_rows is not None:
        out.masked_fill_(plan.padding_rows.view(-1, *[1] * (out.ndim - 1)), 0)
    if plan.row_slots is None:
        return bank
    keep(row_states, bank[count:], plan.row_slots)
    return None
