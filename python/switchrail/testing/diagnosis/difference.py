"""A wrong result and the expected one, with names for the places of their numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from switchrail.ops.batch import CheckpointBatch, RowStatesBatch, StateBatch
from switchrail.testing.inputs import Sample
from switchrail.testing.measure import BOUNDS, FLOOR, Error, measure

Rerun = Callable[[Sample], Sample]
"""Copies a call, runs the copy, and returns it with its results."""

HEADS = ("H", "HV", "HKV", "G")
"""The axes that count heads or groups of heads."""

_WORDS = {"H": "head", "HV": "head", "HKV": "key-value head", "G": "group", "C": "channel", "W-1": "tap"}
_POISON = -1234.5


@dataclass(frozen=True, kw_only=True, eq=False)
class Difference:
    """A result of a call (an output, or the states that it wrote), and the expected result.

    Attributes:
        call: The call, as it was before it ran.
        name: The tensor's name.
        index: [R], the packed row, or the slot, of each row of `got`.
        owners: The sequence of each row of `got`.
        got: [R, ...] float64 on the CPU, with the contract's axes after the first.
        expected: The expected values, in the same form as `got`.
        dtype: The dtype of the output (for states: of `call.out`), which selects a bound in `BOUNDS`.
        bound: The largest allowed error; 0 if bits are compared.
        rerun: Makes the call again; None if a second run would show nothing new.
        before: The states before the call, if known.
        others: By description, other results that the backend may have returned by mistake.
        is_oracles: Whether `expected` is the oracle's result for `call`.
    """

    call: Sample
    name: str
    index: torch.Tensor
    owners: tuple[int, ...]
    got: torch.Tensor
    expected: torch.Tensor
    dtype: torch.dtype
    bound: Error
    rerun: Rerun | None = None
    before: torch.Tensor | None = None
    others: Mapping[str, torch.Tensor] = field(default_factory=dict)
    is_oracles: bool = True

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the axes of `got`."""
        return self.call.contract.tensors[self.name].axes

    @property
    def is_state(self) -> bool:
        """Whether the result consists of states."""
        return self.axes[0] == "slots"

    @property
    def has_heads(self) -> bool:
        """Whether the second axis counts heads."""
        return len(self.axes) > 1 and self.axes[1] in HEADS

    @cached_property
    def wrong(self) -> torch.Tensor:
        """[R, ...], a mask of the wrong numbers, whose error exceeds the bound for their row.

        If only the tensor as a whole exceeds its bound, that bound is used for each number.
        """
        same = (self.got == self.expected) | (self.got.isnan() & self.expected.isnan())
        difference = (self.got - self.expected).abs()
        size = self.expected.norm(dim=-1, keepdim=True)
        floor = FLOOR * size.square().mean().sqrt()
        limit = self.bound.row * size.clamp_min(floor) / self.got.shape[-1] ** 0.5
        wrong: torch.Tensor = ~same & ~(difference <= limit)
        if not wrong.any():
            wrong = ~same & ~(difference <= self.bound.norm * self.expected.square().mean().sqrt())
        return wrong

    @cached_property
    def wrong_rows(self) -> torch.Tensor:
        """[R], a mask of the rows with a wrong number."""
        return self.wrong.flatten(1).any(1)

    @cached_property
    def unwritten(self) -> torch.Tensor:
        """[R, ...], a mask of the wrong numbers that the call did not write."""
        left = torch.zeros_like(self.wrong)
        if self.before is not None:
            same = (self.got == self.before).flatten(1).all(1)
            left = same.view(-1, *[1] * (self.got.ndim - 1)) & self.wrong
        poison = self.got.isnan() if self.before is None else self.got.isnan() & self.before.isnan()
        if self.rerun is None or not poison.any():
            return left
        poisoned = self.call.clone()
        tensor = poisoned.tensor(self.name)
        index = self.index.to(tensor.device)
        tensor[index] = tensor[index].masked_fill(poison.to(tensor.device), _POISON)
        value = torch.tensor(_POISON, dtype=tensor.dtype).double()
        return left | (poison & (self.result(self.rerun(poisoned)) == value))

    def result(self, made: Sample) -> torch.Tensor:
        """[R, ...], the result of another call, at the same places as `got`."""
        return made.tensor(self.name).detach().cpu().double()[self.index]

    def matches(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Whether two tensors agree within `bound`, or, if bits are compared, within `BOUNDS[self.dtype]`."""
        bound = self.bound if self.bound.row else BOUNDS[self.dtype]
        return one.shape == other.shape and one.numel() > 0 and measure(one, other).within(bound)

    def row_name(self, row: int) -> str:
        """The name of a row: `sequence 0, row 3`, or `slot 5 of sequence 0`."""
        n = self.owners[row]
        if self.is_state:
            return f"slot {int(self.index[row])} of sequence {n}"
        return f"sequence {n}, row {int(self.index[row]) - sum(self.call.batch.seqlens[:n])}"

    def place(self, at: Sequence[int]) -> str:
        """The place of a number: `sequence 0, row 3, head 1, column 5`."""
        return ", ".join([self.row_name(at[0]), *axis_names(self.axes, at)])


def axis_names(axes: Sequence[str], at: Sequence[int]) -> list[str]:
    """The parts of a place's name for all axes except the first, such as `head 1`, `column 5`."""
    names = []
    for number, (axis, index) in enumerate(zip(axes[1:], at[1:], strict=True), 2):
        is_column = axes[0] == "T" and number == len(axes) and axis not in _WORDS
        names.append(f"{'column' if is_column else _WORDS.get(axis, axis)} {index}")
    return names


def of_output(
    call: Sample,
    name: str,
    got: torch.Tensor,
    expected: torch.Tensor,
    bound: Error,
    *,
    rerun: Rerun | None = None,
    is_oracles: bool = True,
) -> Difference:
    """The difference between two outputs [T, ...], without padding rows."""
    owners = [n for n, length in enumerate(call.batch.seqlens) for _ in range(length)]
    index = torch.tensor([row for row, n in enumerate(owners) if n not in call.padding], dtype=torch.int64)
    return Difference(
        call=call,
        name=name,
        index=index,
        owners=tuple(n for n in owners if n not in call.padding),
        got=got.detach().cpu().double()[index],
        expected=expected.detach().cpu().double()[index],
        dtype=got.dtype,
        bound=bound,
        rerun=rerun,
        is_oracles=is_oracles,
    )


def of_states(
    call: Sample,
    slots: Sequence[int],
    got: torch.Tensor,
    expected: torch.Tensor,
    bound: Error,
    *,
    before: torch.Tensor | None = None,
    rerun: Rerun | None = None,
    others: Mapping[str, torch.Tensor] | None = None,
    is_oracles: bool = True,
) -> Difference:
    """The difference between two tensors of states [len(slots), ...]; see `Difference` for the arguments."""
    owner = owners_of_slots(call)
    return Difference(
        call=call,
        name="state",
        index=torch.tensor(slots, dtype=torch.int64),
        owners=tuple(owner[slot] for slot in slots),
        got=got.detach().cpu().double(),
        expected=expected.detach().cpu().double(),
        dtype=call.out.dtype,
        bound=bound,
        rerun=rerun,
        before=None if before is None else before.detach().cpu().double(),
        others={about: other.detach().cpu().double() for about, other in (others or {}).items()},
        is_oracles=is_oracles,
    )


def count(number: int, what: str) -> str:
    """A number with a noun: `1 row`, `1,024 rows`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def owners_of_slots(call: Sample) -> dict[int, int]:
    """For each slot that the batch names for writing, the sequence that owns it."""
    batch = call.batch
    assert isinstance(batch, StateBatch)
    owners = {slot: n for n, slot in enumerate(batch.write_slots.tolist()) if slot >= 0}
    if isinstance(batch, CheckpointBatch):
        for n, kept in enumerate(batch.checkpoint_slots.tolist()):
            owners |= {slot: n for slot in kept if slot >= 0}
    if isinstance(batch, RowStatesBatch):
        for n, slots in enumerate(batch.row_slots.tolist()):
            owners |= {slot: n for slot in slots if slot >= 0}
    return owners
