"""The slots that a step reads and writes in a pool of states, for the plain-torch backends."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from switchrail.ops.batch import CheckpointBatch, StateBatch
from switchrail.ops.contract import Contract


def normal(slots: torch.Tensor, batch: StateBatch) -> torch.Tensor:
    """A table of slots as int64; 0 is replaced by -1 if the batch's null slot is 0."""
    slots = slots.long()
    return slots.masked_fill(slots == 0, -1) if batch.null_slot == 0 else slots


def indices(numbers: Sequence[int], device: torch.device) -> torch.Tensor:
    """Copies host numbers (possibly none) to a device as int64, without waiting for the copy."""
    return torch.tensor(numbers, dtype=torch.int64).to(device, non_blocking=True)


class Slots:
    """The states of M sequences of a batch, read from and written to a pool [slots, ...] by slot.

    On the CPU, the constructor reads the slots, and no layer applies a mask that is not needed. On other
    devices masks are always applied, because reading the slots would synchronize with the device.

    Args:
        contract: The op's contract, for its errors.
        batch: The batch.
        sequences: The indices of the M sequences, in the order to use. None of them is empty.

    Raises:
        ContractError: The batch breaks the contract. The numbers in its tables are checked only on the CPU.
    """

    def __init__(self, contract: Contract, batch: StateBatch, sequences: Sequence[int]) -> None:
        self._contract = contract
        device = batch.read_slots.device
        visible = device.type == "cpu"
        index = indices(sequences, device)
        read, write = (normal(slots[index], batch) for slots in (batch.read_slots, batch.write_slots))
        is_padding, unwritten = read < 0, write < 0
        fresh = ~batch.has_initial_state[index]
        self._highest: dict[str, int] = {}
        self._run: tuple[int, int] | None = None
        if visible:
            owners = _check_slots(contract, batch)
            if isinstance(batch, CheckpointBatch):
                self._highest["batch.checkpoint_slots"] = _check_checkpoints(contract, batch, owners)
            reads, writes = read.tolist(), write.tolist()
            self._highest["batch.read_slots, batch.write_slots"] = max([-1, *reads, *writes])
            if reads and reads[0] >= 0 and reads == writes == list(range(reads[0], reads[0] + len(reads))):
                self._run = (reads[0], reads[-1] + 1)
        self.padding = None if visible and not is_padding.any() else is_padding
        """[M] bool, which sequences are padding; None if it is known that none are."""
        self._unwritten = None if visible and not unwritten.any() else unwritten
        self._fresh = None if visible and not fresh.any() else fresh
        self._all_fresh = visible and bool(fresh.all())
        self._read = read.clamp_min(0)
        self._write = write.clamp_min(0)

    def load(self, pool: torch.Tensor, dtype: torch.dtype, *, copy: bool = False) -> torch.Tensor:
        """Load the initial states [M, ...] in `dtype`; zeros for a sequence without an initial state.

        The result may be a view of the pool, unless a copy is requested. Either way, `store` writes the final
        states back.

        Raises:
            ContractError: A slot is outside the pool. Checked only on the CPU.
        """
        for tables, highest in self._highest.items():
            if highest >= pool.shape[0]:
                valid = f"below {pool.shape[0]}, the number of the pool's slots"
                raise self._contract.error(tables, f"slot {highest}", valid)
        if self._run is not None and pool.dtype == dtype and not copy and pool.is_contiguous():
            states = pool[slice(*self._run)]
            if self._fresh is not None:
                states.masked_fill_(_broadcast(self._fresh, states), 0)
            return states
        if self._all_fresh:
            return torch.zeros(len(self._read), *pool.shape[1:], dtype=dtype, device=pool.device)
        states = pool.index_select(0, self._read).to(dtype)
        if self._fresh is not None:
            states = torch.where(_broadcast(self._fresh, states), 0, states)
        return states

    def store(self, pool: torch.Tensor, states: torch.Tensor) -> None:
        """Write the final states [M, ...] to the pool. Sequences without a slot to write are skipped."""
        if self._run is not None:
            home = pool[slice(*self._run)]
            if home.data_ptr() != states.data_ptr():
                home.copy_(states)
            return
        states = states.to(pool.dtype)
        if self._unwritten is not None:
            # Skipped sequences rewrite slot 0, which is never assigned, with its old value.
            old = pool.index_select(0, self._write)
            states = torch.where(_broadcast(self._unwritten, states), old, states)
        pool.index_copy_(0, self._write, states)


def keep(pool: torch.Tensor, states: torch.Tensor, slots: torch.Tensor) -> None:
    """Write states [R, ...] to slots [R] of a pool. Slots of -1 are skipped."""
    if len(slots) == 0:
        return
    wanted = slots >= 0
    # Selecting only the wanted states would synchronize with the device. Instead, each skipped entry repeats
    # the write of the first wanted state. If all are skipped, slot 0 is rewritten with its old value.
    own = torch.arange(len(slots), device=slots.device)
    own = torch.where(wanted, own, wanted.int().argmax())
    there = slots.index_select(0, own).clamp_min(0)
    new = states.index_select(0, own).to(pool.dtype)
    pool.index_copy_(0, there, torch.where(wanted.any(), new, pool.index_select(0, there)))


def _broadcast(mask: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    return mask.reshape(-1, *[1] * (states.ndim - 1))


def _check_slots(contract: Contract, batch: StateBatch) -> dict[int, int]:
    """Check the slots that are read and written. Return, by slot, a nonempty sequence that uses it."""
    reads: list[int] = normal(batch.read_slots, batch).tolist()
    writes: list[int] = normal(batch.write_slots, batch).tolist()
    owners: dict[int, int] = {}
    for n, (read, write, length) in enumerate(zip(reads, writes, batch.seqlens, strict=True)):
        if min(read, write) < -1:
            raise contract.error(
                "batch.read_slots, batch.write_slots", f"{read}, {write} for sequence {n}", "-1 or more"
            )
        if (read == -1) != (write == -1) and not (batch.read_only and write == -1):
            raise contract.error(
                "batch.read_slots, batch.write_slots",
                f"{read}, {write} for sequence {n}",
                "-1 in both or in neither",
            )
        if write > 0 and length and owners.setdefault(write, n) != n:
            raise contract.error(
                "batch.write_slots",
                f"slot {write} for sequences {owners[write]} and {n}",
                "a different slot for each sequence",
            )
    for n, (read, length) in enumerate(zip(reads, batch.seqlens, strict=True)):
        if read >= 0 and length and owners.get(read, n) != n:
            raise contract.error(
                "batch.read_slots",
                f"slot {read} for sequence {n}, which sequence {owners[read]} writes",
                "a slot that no other sequence writes",
            )
    return owners | {read: n for n, read in enumerate(reads) if read >= 0 and batch.seqlens[n]}


def _check_checkpoints(contract: Contract, batch: CheckpointBatch, owners: dict[int, int]) -> int:
    """Check that each checkpoint has its own slot. Return the highest of these slots; -1 if there is none."""
    taken = dict(owners)
    highest = -1
    for n, slots in enumerate(normal(batch.checkpoint_slots, batch).tolist()):
        for slot in slots[: batch.seqlens[n] // batch.checkpoint_every]:
            padding = bool(batch.read_slots[n] <= batch.null_slot)
            if slot < -1 or (padding and slot != -1):
                valid = "-1 for a padding sequence" if padding else "-1 or more"
                raise contract.error("batch.checkpoint_slots", f"{slot} for sequence {n}", valid)
            if slot in taken:
                raise contract.error(
                    "batch.checkpoint_slots",
                    f"slot {slot} for sequence {n}, already used by sequence {taken[slot]}",
                    "a different slot for each state",
                )
            if slot >= 0:
                taken[slot] = n
            highest = max(highest, slot)
    return highest
