"""Describes memory that a call wrote although it must not: inputs, tables of the batch, and slots."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from switchrail.ops.batch import StateBatch
from switchrail.testing.diagnosis.difference import axis_names, owners_of_slots
from switchrail.testing.diagnosis.findings import Finding
from switchrail.testing.inputs import Sample
from switchrail.testing.measure import Error, measure

_MOST_TOLD = 4


def changed_input(call: Sample, name: str, before: torch.Tensor, after: torch.Tensor) -> list[Finding]:
    """The first place at which an input or a tensor of the batch was changed."""
    old, new = (tensor.detach().cpu() for tensor in (before, after))
    changed = ((old != new) & ~(old.isnan() & new.isnan())).nonzero()
    cause = "an input is modified"
    if not len(changed):
        return [
            Finding(cause, f"{name} itself is unchanged; memory beside it in the same buffer is modified")
        ]
    at = changed[0].tolist()
    axes = (call.contract.tensors.get(name) or call.contract.batch[name]).axes
    if axes[0] == "T":
        n, row = _owner(call, at[0])
        place = [f"sequence {n}, row {row}"]
    else:
        place = [f"{'sequence' if axes[0] == 'N' else axes[0]} {at[0]}"]
    where = ", ".join([*place, *axis_names(axes, at)])
    became = f"{old[tuple(at)].item():.6g} became {new[tuple(at)].item():.6g}"
    counted = f"{len(changed):,} of {old.numel():,} numbers"
    return [Finding(cause, f"{name}, first at {where}: {became}; {counted}")]


def stray_slots(
    call: Sample, changed: Sequence[int], states: torch.Tensor, expected: torch.Tensor, bound: Error
) -> list[Finding]:
    """Describes each slot that the call must not write but wrote: its role, and its contents.

    Args:
        call: The call, as it was before it ran.
        changed: The slots that were written.
        states: The pool after the call, on the CPU.
        expected: The oracle's pool, on the CPU.
        bound: The largest allowed error of a state.
    """
    batch = call.batch
    assert isinstance(batch, StateBatch)
    written = {slot: n for slot, n in owners_of_slots(call).items() if batch.seqlens[n]}
    empty = {slot: n for slot, n in owners_of_slots(call).items() if not batch.seqlens[n]}
    read = {slot: n for n, slot in enumerate(batch.read_slots.tolist()) if slot >= 0}
    told = []
    roles = set()
    for slot in changed:
        content = next(
            (
                f" (holds the state of slot {own} of sequence {n})"
                for own, n in written.items()
                if measure(states[slot : slot + 1], expected[own : own + 1]).within(bound)
            ),
            "",
        )
        if slot == 0:
            role, about = "slot 0, which no sequence owns, is written", "slot 0"
        elif slot in empty:
            role, about = "the slot of an empty sequence is written", f"slot {slot} of sequence {empty[slot]}"
        elif slot in read:
            role = "a read-only slot is written"
            about = f"slot {slot}, which sequence {read[slot]} reads"
        elif call.padding and slot == len(states) - 1:
            role, about = "the last slot is written, as if padding's -1 were an index", f"slot {slot}"
        elif slot - 1 in written or slot + 1 in written:
            own = slot - 1 if slot - 1 in written else slot + 1
            role = "a slot beside one that a sequence owns is written"
            about = f"slot {slot}, beside slot {own} of sequence {written[own]}"
        else:
            role, about = "a slot that no sequence names is written", f"slot {slot}"
        roles.add(role)
        told.append(about + content)
    rest = f" and {len(told) - _MOST_TOLD} more" if len(told) > _MOST_TOLD else ""
    return [Finding("; ".join(sorted(roles)), "; ".join(told[:_MOST_TOLD]) + rest)]


def _owner(call: Sample, row: int) -> tuple[int, int]:
    for n, length in enumerate(call.batch.seqlens):
        if row < length:
            return n, row
        row -= length
    raise IndexError(row)
