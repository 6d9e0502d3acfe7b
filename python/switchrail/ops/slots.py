"""The pool of states that the plain-torch backends share: which slots a step reads and writes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from switchrail.ops.batch import StateBatch
from switchrail.ops.contract import Contract


class Slots:
    """The states of M sequences of a batch, read from and written to a pool [slots, ...] by slot.

    On the CPU the slots are looked at once, here, so that what no sequence needs is left out of each layer's work; on
    another device that would wait for it, and the masks are applied whatever they hold.

    Args:
        contract: The op's contract, for its errors.
        batch: The batch.
        sequences: The indices of the M sequences, none of length zero, in the order in which they are wanted.

    Raises:
        ContractError: The slots break the contract; told on the CPU only.
    """

    def __init__(self, contract: Contract, batch: StateBatch, sequences: Sequence[int]) -> None:
        self._contract = contract
        device = batch.read_slots.device
        visible = device.type == "cpu"
        if visible:
            _check_slots(contract, batch)
        index = torch.tensor(sequences, dtype=torch.int64).to(device)
        read, write = batch.read_slots[index], batch.write_slots[index]
        self._highest = max(map(int, (*read, *write)), default=-1) if visible else -1
        is_padding = write < 0
        fresh = is_padding | ~batch.has_initial_state[index]
        self.padding = None if visible and not is_padding.any() else is_padding
        """[M] bool, which sequences are padding; None where it is known that none is."""
        self._fresh = None if visible and not fresh.any() else fresh
        self._read = read.clamp_min(0)
        self._write = write.clamp_min(0)

    def load(self, pool: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Copies the initial states: [M, ...] in `dtype`, zero where there is none."""
        if self._highest >= pool.shape[0]:
            raise self._contract.error(
                "batch.read_slots, batch.write_slots",
                f"slot {self._highest}",
                f"below the pool's {pool.shape[0]} slots",
            )
        states = pool.index_select(0, self._read).to(dtype)
        if self._fresh is not None:
            states.masked_fill_(_broadcast(self._fresh, states), 0)
        return states

    def store(self, pool: torch.Tensor, states: torch.Tensor) -> None:
        """Writes the final states [M, ...], none for padding."""
        states = states.to(pool.dtype)
        if self.padding is not None:
            # Padding writes back what slot 0, which no sequence owns, holds.
            states = torch.where(_broadcast(self.padding, states), pool.index_select(0, self._write), states)
        pool.index_copy_(0, self._write, states)


def _broadcast(mask: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    return mask.reshape(-1, *[1] * (states.ndim - 1))


def _check_slots(contract: Contract, batch: StateBatch) -> None:
    reads: list[int] = batch.read_slots.tolist()
    writes: list[int] = batch.write_slots.tolist()
    owners: dict[int, int] = {}
    for n, (read, write, length) in enumerate(zip(reads, writes, batch.seqlens, strict=True)):
        if min(read, write) < -1:
            raise contract.error(
                "batch.read_slots, batch.write_slots", f"{read}, {write} for sequence {n}", "-1 or more"
            )
        if (read == -1) != (write == -1):
            raise contract.error(
                "batch.read_slots, batch.write_slots",
                f"{read}, {write} for sequence {n}",
                "-1 in both or in none",
            )
        if write >= 0 and length and owners.setdefault(write, n) != n:
            raise contract.error(
                "batch.write_slots",
                f"slot {write} for sequences {owners[write]} and {n}",
                "a slot for each sequence",
            )
    for n, (read, length) in enumerate(zip(reads, batch.seqlens, strict=True)):
        if read >= 0 and length and owners.get(read, n) != n:
            raise contract.error(
                "batch.read_slots",
                f"slot {read} for sequence {n}, which sequence {owners[read]} writes",
                "a slot that no other sequence writes",
            )


__all__ = ["Slots"]
