"""Samples: single calls of ops with their batches, which can be copied, changed and run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from switchrail.ops.backend import AnyBackend
from switchrail.ops.batch import (
    CheckpointBatch,
    PagedBatch,
    PagedTreeBatch,
    Phase,
    RowStatesBatch,
    SequenceBatch,
    StateBatch,
    VerifyBatch,
    fields_of,
)
from switchrail.ops.contract import Contract
from switchrail.ops.samples.random import Random


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One call of an op with its batch: a backend's inputs, as tensors and options by name.

    Attributes:
        contract: The op's contract.
        phase: The phase.
        tensors: The tensor arguments by name, `out` included.
        options: The other arguments by name.
        batch: The sequences.
        padding: The indices of the padding sequences.
    """

    contract: Contract
    phase: Phase
    tensors: dict[str, torch.Tensor | None]
    options: dict[str, Any]
    batch: SequenceBatch
    padding: frozenset[int] = frozenset()

    @property
    def op(self) -> str:
        """The op's name."""
        return self.contract.op

    @property
    def out(self) -> torch.Tensor:
        """The output tensor."""
        return self.tensor("out")

    @property
    def state(self) -> torch.Tensor:
        """The state pool."""
        return self.tensor("state")

    @property
    def outputs(self) -> dict[str, torch.Tensor]:
        """`out`, and the other tensors with one row per token that the call writes."""
        specs = self.contract.tensors
        return {
            name: tensor
            for name, tensor in self.tensors.items()
            if tensor is not None and specs[name].mutated and specs[name].axes[0] == "T"
        }

    @property
    def batch_tensors(self) -> dict[str, torch.Tensor]:
        """The tensors of the batch by name, except those that a `DeferredBatch` adds."""
        names = list(self.contract.batch)
        if isinstance(self.batch, (VerifyBatch, PagedTreeBatch)):
            names.append("parents")
        if isinstance(self.batch, CheckpointBatch):
            names.append("checkpoint_slots")
        if isinstance(self.batch, RowStatesBatch):
            names.append("row_slots")
        return {name: getattr(self.batch, name) for name in names}

    @property
    def written_slots(self) -> list[int]:
        """The slots that the call (in verification a commit) may write; final states come first."""
        batch = self.batch
        assert isinstance(batch, StateBatch)
        slots = zip(batch.write_slots.tolist(), batch.seqlens, strict=True)
        written = [slot for slot, length in slots if slot > batch.null_slot and length]
        if isinstance(batch, CheckpointBatch):
            for kept, length in zip(batch.checkpoint_slots.tolist(), batch.seqlens, strict=True):
                kept = kept[: length // batch.checkpoint_every]
                written += [slot for slot in kept if slot > batch.null_slot]
        return written

    @property
    def written(self) -> dict[str, list[int]]:
        """For each pool of states, the slots that the call itself writes, without a later commit."""
        batch = self.batch
        if not isinstance(batch, StateBatch):
            return {}
        pools: dict[str, list[int]] = {
            name: [] for name in ("state", "row_states") if self.tensors.get(name) is not None
        }
        if isinstance(batch, RowStatesBatch):
            rows = zip(batch.row_slots.tolist(), batch.seqlens, strict=True)
            pools[list(pools)[-1]] = [
                slot for slots, length in rows for slot in slots[:length] if slot > batch.null_slot
            ]
        elif self.phase != "verify":
            pools["state"] = self.written_slots
        return pools

    @property
    def results(self) -> dict[str, torch.Tensor]:
        """The results of the call by name: outputs, and the states in the slots that the call writes."""
        found = dict(self.outputs)
        for name, slots in self.written.items():
            if slots or self.phase != "verify":
                found[name] = self.tensor(name)[slots]
        return found

    @property
    def made(self) -> Any:
        """The sample as a call for backends, with a new layer.

        Raises:
            ContractError: An argument is missing or unknown.
        """
        return self.contract.make({**self.tensors, **self.options})

    def run(self, backend: AnyBackend) -> Verification | None:
        """Plans and runs the call, which writes to this sample's own tensors.

        Returns:
            A `Verification` in verify; None in other phases.
        """
        plan, call = backend.plan(self.phase, self.batch), self.made
        record = backend.run(call, self.batch, plan)
        return Verification(self, call, backend, plan, record) if self.phase == "verify" else None

    def bind(self, backend: AnyBackend, plan: object) -> Callable[[], object]:
        """The call as a function without arguments, which can be called repeatedly."""
        return partial(backend.run, self.made, self.batch, plan)

    def with_checkpoints(self, every: int, seed: int = 0) -> Sample:
        """The same prefill with checkpoints, about two thirds of them stored, on a new, larger pool."""
        batch = self.batch
        assert isinstance(batch, StateBatch)
        random = Random(seed)
        most = max(batch.seqlens, default=0) // every + 1
        wanted = random.uniform(len(batch.seqlens), most) < 2 / 3
        wanted[list(self.padding)] = False
        slots = torch.full(wanted.shape, -1, dtype=torch.int64)
        order = random.permutation(int(wanted.sum())) + self.state.shape[0]
        slots[wanted] = order
        # Entries past a sequence's end are invalid numbers, because a backend must ignore them.
        beyond = torch.arange(most) >= torch.tensor(batch.seqlens).reshape(-1, 1) // every
        slots[beyond & ~wanted] = -7
        state = widened(self.state, len(self.state) + len(order))
        return dataclasses.replace(
            self,
            tensors={**self.tensors, "state": state},
            batch=CheckpointBatch(
                **fields_of(batch, StateBatch),
                checkpoint_every=every,
                checkpoint_slots=slots.to(self.out.device),
            ),
        )

    def with_trees(self, seed: int = 0) -> Sample:
        """The same verification with random trees: a row's parent is the state or a random earlier row."""
        batch = self.batch
        random = Random(seed)
        rows = [i for length in batch.seqlens for i in range(length)]
        parents = tuple(int(u * (i + 1)) - 1 for i, u in zip(rows, random.uniform(len(rows)), strict=True))
        tensor = torch.tensor(parents, dtype=torch.int32, device=self.out.device)
        fields = fields_of(batch, type(batch)) | {"parents": tensor, "parent_rows": parents}
        kind = PagedTreeBatch if isinstance(batch, PagedBatch) else VerifyBatch
        return dataclasses.replace(self, batch=kind(**fields))

    def clone(self) -> Sample:
        """A copy on the same device; see `to`."""
        return self.to(self.out.device)

    def to(self, device: torch.device | str) -> Sample:
        """A copy on a device with its own memory. The call's tensors keep their strides.

        Tensors that share a buffer also share one in the copy.
        """
        tensors: dict[str, torch.Tensor | None] = {}
        storages: dict[int, torch.UntypedStorage] = {}
        for name, tensor in self.tensors.items():
            if tensor is None:
                tensors[name] = None
                continue
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in storages:
                whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
                storages[storage.data_ptr()] = whole.to(device, copy=True).untyped_storage()
            tensors[name] = torch.empty(0, dtype=tensor.dtype, device=device).set_(
                storages[storage.data_ptr()], tensor.storage_offset(), tensor.shape, tensor.stride()
            )
        moved: dict[str, Any] = {
            name: tensor.to(device, copy=True) for name, tensor in self.batch_tensors.items()
        }
        return dataclasses.replace(self, tensors=tensors, batch=dataclasses.replace(self.batch, **moved))

    def double(self) -> Sample:
        """A float64 copy with the same (rounded) numbers, on the same device. Outputs are set to NaN."""
        tensors = {
            name: tensor.double() if tensor is not None else None for name, tensor in self.tensors.items()
        }
        for name, tensor in self.outputs.items():
            tensors[name] = torch.full_like(tensor, torch.nan, dtype=torch.float64)
        return dataclasses.replace(self, tensors=tensors)

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor of this name, which must not be None."""
        tensor = self.tensors[name]
        assert tensor is not None
        return tensor


def widened(pool: torch.Tensor, count: int) -> torch.Tensor:
    """A copy of a pool with `count` slots or pages and the same order of axes. New slots are NaN."""
    order = sorted(range(pool.ndim), key=pool.stride, reverse=True)
    shape = (count, *pool.shape[1:])
    wide = torch.full([shape[axis] for axis in order], torch.nan, dtype=pool.dtype, device=pool.device)
    wide = wide.permute([order.index(axis) for axis in range(pool.ndim)])
    wide[: len(pool)] = pool
    return wide


@dataclass(frozen=True, slots=True)
class Verification:
    """A verification that was run. It can be committed if its record is not None.

    Attributes:
        inputs: The sample that was run.
        call: The call made from the sample.
        backend: The backend that ran it.
        plan: The plan of the sample's batch.
        record: The record that `run` returned.
    """

    inputs: Sample
    call: Any
    backend: AnyBackend
    plan: object
    record: object

    def commit(self, accepted: torch.Tensor, state: torch.Tensor) -> None:
        """Commits to a pool: the call's own, or a copy. `accepted` is [N] int64."""
        layer = dataclasses.replace(self.call.layer, state=state)
        call = self.call._replace(layer=layer)
        self.backend.commit(call, self.inputs.batch, self.plan, self.record, accepted)
