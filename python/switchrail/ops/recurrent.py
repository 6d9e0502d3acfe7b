"""Shared parts of the plain-torch backends of ops with a state: single tokens, drafted tokens, commits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from switchrail.ops.backend import Backend, foreign
from switchrail.ops.batch import Bounds, Phase, StateBatch, VerifyBatch
from switchrail.ops.call import CallT
from switchrail.ops.chunks import ChunkPlan, plan_chunks
from switchrail.ops.contract import Contract
from switchrail.ops.slots import Slots, indices

Step = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
"""Runs one token from each of the states [R, ...], which it updates in place, and returns the results [R,
...]. The tokens are those of the given packed rows [R]; None means all rows in order."""


@dataclass(frozen=True, slots=True)
class TreePlan:
    """The data that all layers of a step share in verification.

    The states are kept in a bank: M initial states, then one for each of the T rows.

    Attributes:
        seqlens: The lengths of the batch's sequences.
        slots: The initial states of the M nonempty sequences.
        sequences: [M] int64, their indices in the batch.
        starts: [M] int64, their first rows.
        lengths: [M] int64, their lengths.
        levels: For each depth of the trees its rows, and the bank indices of the states before them.
        padding_rows: [T] bool, the rows of padding; None if there is known to be none.
    """

    seqlens: tuple[int, ...]
    slots: Slots
    sequences: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor
    levels: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    padding_rows: torch.Tensor | None


def plan_tree(contract: Contract, batch: StateBatch) -> TreePlan:
    """Sort the drafted rows of a batch by their depth.

    Raises:
        ContractError: The batch breaks the contract.
    """
    contract.check_batch("verify", batch)
    assert isinstance(batch, VerifyBatch)
    device = batch.read_slots.device

    sequences = [n for n, length in enumerate(batch.seqlens) if length]
    starts: list[int] = []
    depths: list[int] = []
    before: list[int] = []
    levels: list[list[int]] = []
    for m, n in enumerate(sequences):
        start = len(depths)
        starts.append(start)
        for row in range(start, start + batch.seqlens[n]):
            parent = batch.parent_rows[row]
            depths.append(0 if parent < 0 else depths[start + parent] + 1)
            before.append(m if parent < 0 else len(sequences) + start + parent)
            if depths[row] == len(levels):
                levels.append([])
            levels[depths[row]].append(row)
    slots = Slots(contract, batch, sequences)
    lengths = indices([batch.seqlens[n] for n in sequences], device)
    padding_rows = None
    if slots.padding is not None:
        padding_rows = torch.repeat_interleave(slots.padding, lengths, output_size=len(depths))
    return TreePlan(
        batch.seqlens,
        slots,
        indices(sequences, device),
        indices(starts, device),
        lengths,
        tuple((indices(rows, device), indices([before[row] for row in rows], device)) for rows in levels),
        padding_rows,
    )


class TorchRecurrent(Backend[CallT, StateBatch]):
    """The plans of an op with a state: chunks, or levels of drafted rows."""

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
        """The layer's pool of states, with the axes in the order that `run` computes with."""
        state: torch.Tensor = call[0].state
        return state


def run_single(
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
    plan: TreePlan, state: torch.Tensor, out: torch.Tensor, dtype: torch.dtype, step: Step
) -> torch.Tensor:
    """Run drafted rows, computing in `dtype`, and return the bank of their states."""
    count = len(plan.sequences)
    bank = torch.empty(count + len(out), *state.shape[1:], dtype=dtype, device=state.device)
    bank[:count] = plan.slots.load(state, dtype, copy=True)
    for rows, before in plan.levels:
        states = bank.index_select(0, before)
        out.index_copy_(0, rows, step(states, rows).to(out.dtype))
        bank.index_copy_(0, rows + count, states)
    if plan.padding_rows is not None:
        out.masked_fill_(plan.padding_rows.view(-1, *[1] * (out.ndim - 1)), 0)
    return bank


__all__ = ["Step", "TorchRecurrent", "TreePlan", "plan_tree", "run_single", "run_tree"]
