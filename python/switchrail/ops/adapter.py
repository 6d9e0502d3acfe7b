"""A wrapper that adds some features to a backend which lacks them, for calls on an engine's memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from switchrail.ops.backend import AnyBackend, foreign
from switchrail.ops.batch import Bounds, Phase, SequenceBatch, StateBatch
from switchrail.ops.call import Layer
from switchrail.ops.catalog import CONTRACTS
from switchrail.ops.contract import Contract
from switchrail.ops.delegate import Wrapper
from switchrail.ops.delta import activate_beta, activate_gate

ADAPTED: Mapping[str, str] = {
    "index_views": "tables of slots, pages and lengths are copied once a step",
    "mixed_weights": "gates are activated before each call",
    "null_slot": "slot 0 becomes -1 in a copy of the tables, once a step",
    "raw_gates": "gates are activated before each call",
    "read_only_states": "slot 0 takes the final states that have no slot to write",
    "strided_out": "results are copied from dense memory after each call",
    "time_innermost": "rows are copied before each call",
}
"""The features that an `Adapter` can add, each with a description of how it does so."""

_TABLES: Mapping[str, torch.dtype] = {
    "cu_seqlens": torch.int32,
    "read_slots": torch.int64,
    "write_slots": torch.int64,
    "has_initial_state": torch.bool,
    "checkpoint_slots": torch.int64,
    "row_slots": torch.int64,
    "pending_records": torch.int64,
    "pending_rows": torch.bool,
    "records": torch.int64,
    "parents": torch.int32,
    "page_table": torch.int32,
    "kv_lens": torch.int32,
}


def plain(batch: SequenceBatch, *, wide: Collection[str] = ()) -> Any:
    """The batch in its plain form, which needs no feature of `ADAPTED`. A plain batch is returned unchanged.

    A table is copied if it has another dtype or gaps, or if its values change.

    Args:
        batch: The batch.
        wide: The names of tables that may keep gaps between rows.
    """
    changed: dict[str, Any] = {
        name: table.to(_TABLES[name]).contiguous()
        for name, table in _tables(batch)
        if _is_odd(name, table, wide)
    }
    if isinstance(batch, StateBatch) and batch.null_slot == 0:
        for name in ("read_slots", "write_slots", "checkpoint_slots", "row_slots"):
            table = changed.get(name, getattr(batch, name, None))
            if table is not None:
                changed[name] = table.masked_fill(table == 0, -1)
        changed["null_slot"] = -1
    if isinstance(batch, StateBatch) and batch.read_only:
        read, write = (changed.get(name, getattr(batch, name)) for name in ("read_slots", "write_slots"))
        changed["write_slots"] = torch.where((read >= 0) & (write < 0), 0, write)
        changed["read_only"] = False
    return replace(batch, **changed) if changed else batch


def is_plain(batch: SequenceBatch, *, wide: Collection[str] = ()) -> bool:
    """Whether `plain` returns the batch itself; copies nothing."""
    if isinstance(batch, StateBatch) and (batch.null_slot == 0 or batch.read_only):
        return False
    return not any(_is_odd(name, table, wide) for name, table in _tables(batch))


def _tables(batch: SequenceBatch) -> Iterator[tuple[str, torch.Tensor]]:
    for name in _TABLES:
        table = getattr(batch, name, None)
        if table is not None:
            yield name, table


def _is_odd(name: str, table: torch.Tensor, wide: Collection[str]) -> bool:
    dense = table.is_contiguous() or (name in wide and table.stride(-1) == 1)
    return table.dtype is not _TABLES[name] or not dense


@dataclass(slots=True)
class Adapted:
    """A plan, and the plain form of the batch that the plan was made for.

    Attributes:
        batch: The plain form.
        plan: The backend's plan.
        bounds: The bounds of the batches that the plan can be updated for; None if it can't be updated.
        first: The layer that is called first in each step; None before the first call, and without bounds.
    """

    batch: Any
    plan: Any
    bounds: Bounds | None
    first: Layer | None = None

    @property
    def seqlens(self) -> tuple[int, ...]:
        """The lengths of the batch's sequences."""
        lengths: tuple[int, ...] = self.batch.seqlens
        return lengths

    def reread(self, contract: Contract, batch: SequenceBatch, layer: Layer) -> None:
        """Copy the batch's tables, in the first call of a step, if the plan has bounds.

        A captured graph may write the engine's tables after `refresh`, so they are copied in `run`, too. The
        layers have the same order in all steps, so a call of the first layer begins a new step.

        Raises:
            ContractError: See `update`.
        """
        if self.bounds is None:
            return
        if self.first is None:
            self.first = layer
        if self.first is layer:
            self.update(contract, batch)

    def update(self, contract: Contract, batch: SequenceBatch) -> Any:
        """Copy another batch's tables into the plan's own tables. Return the plain form that uses these.

        Raises:
            ContractError: The plan has no bounds, or the batch is of another class or does not fit into the
                plan's tables. Nothing was copied.
        """
        if self.bounds is None:
            raise contract.error("plan", "a plan without bounds", "a plan with bounds")
        if type(batch) is not type(self.batch):
            raise contract.error("batch", type(batch).__name__, f"a {type(self.batch).__name__}, as planned")
        longest = max(getattr(batch, "kv_seqlens", ()), default=0)
        if longest > self.bounds.tokens:
            valid = f"at most {self.bounds.tokens}, the plan's bound"
            raise contract.error("batch.kv_seqlens", f"{longest} tokens", valid)
        own = {name: self._own_table(contract, name, table) for name, table in _tables(batch)}
        new = plain(batch, wide=own)
        for name, table in own.items():
            table.copy_(getattr(new, name))
        self.batch = replace(new, **{name: getattr(self.batch, name) for name in own})
        return self.batch

    def _own_table(self, contract: Contract, name: str, table: torch.Tensor) -> torch.Tensor:
        """The plan's table `name`, to which another batch's `table` is to be copied.

        A page table with more columns than `table` is cut.
        """
        own: torch.Tensor = getattr(self.batch, name)
        if name == "page_table" and table.shape[1] <= own.shape[1]:
            own = own[:, : table.shape[1]]
        if own.shape != table.shape:
            valid = f"{list(own.shape)}, as in the plan"
            raise contract.error(f"batch.{name}", f"shape {list(table.shape)}", valid)
        return own


def owned(batch: Any, source: SequenceBatch, bounds: Bounds | None) -> Any:
    """`batch`; with bounds, a copy of it that shares no table with `source`.

    `Adapted.update` overwrites the tables of a plan with bounds, and must not write to those of `source`.

    Args:
        batch: The plain form of `source`.
        source: The batch.
        bounds: The bounds passed to `plan`.
    """
    if bounds is None:
        return batch
    shared = {name: table for name, table in _tables(batch) if table is getattr(source, name)}
    dense = torch.contiguous_format
    return replace(batch, **{name: table.clone(memory_format=dense) for name, table in shared.items()})


def dense_call(contract: Contract, call: Any) -> tuple[Any, list[tuple[torch.Tensor, torch.Tensor]]]:
    """The call with dense results, and with copies of the inputs whose time axis is innermost.

    Returns:
        The call (the same object if it needs no copy), and pairs of a result tensor and the dense tensor that
        must be copied to it after the call.
    """
    changed: dict[str, torch.Tensor] = {}
    results = []
    for name in contract.brought:
        tensor, spec = getattr(call, name), contract.tensors[name]
        if tensor is None or not spec.also:
            continue
        if spec.mutated and not tensor.is_contiguous():
            changed[name] = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
            results.append((tensor, changed[name]))
        elif "time_innermost" in spec.features and tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            changed[name] = tensor.contiguous()
    return (call._replace(**changed) if changed else call), results


class Adapter(Wrapper):
    """A backend with added features: copies small tables or rows, never pools or caches.

    Args:
        backend: The backend.
        features: The features of the backend's registration.

    Attributes:
        backend: The backend.
        added: The features that the adapter adds.
    """

    def __init__(self, backend: AnyBackend, features: Collection[str]) -> None:
        super().__init__(backend.config)
        self.backend = backend
        self._contract = CONTRACTS[backend.op]
        self.added = frozenset(ADAPTED) & self._contract.features.keys() - set(features)
        self._features = (*features, *sorted(self.added))

    @property
    def parts(self) -> Mapping[str, AnyBackend]:
        """The backend."""
        return {"backend": self.backend}

    def inside(self, plan: Any, batch: Any) -> tuple[str, Any, Any]:
        """The backend's plan, and the plain form of the batch."""
        if not isinstance(plan, Adapted):
            raise foreign("plan", plan)
        return "backend", plan.plan, plan.batch

    def plan(self, phase: Phase, batch: SequenceBatch, bounds: Bounds | None = None) -> Adapted:
        """Plans the plain form of the batch."""
        self._contract.check_batch(phase, batch, self._features)
        own = owned(plain(batch), batch, bounds)
        return Adapted(own, self.backend.plan(phase, own, bounds), bounds)

    def refresh(self, plan: Any, batch: SequenceBatch) -> None:
        """Copies the tables of another batch into those of the plan."""
        if not isinstance(plan, Adapted):
            raise foreign("plan", plan)
        self.backend.refresh(plan.plan, plan.update(self._contract, batch))

    def run(self, call: Any, batch: SequenceBatch, plan: Any) -> Any:
        """Runs the call in a form that the backend supports, then copies the results if needed."""
        self._contract.check_call(call, batch, self._features)
        if not isinstance(plan, Adapted) or plan.seqlens != batch.seqlens:
            raise foreign("plan", plan)
        plan.reread(self._contract, batch, call[0])
        own, results = dense_call(self._contract, self._activated(call))
        record = self.backend.run(own, plan.batch, plan.plan)
        for result, dense in results:
            result.copy_(dense)
        return record

    def commit(self, call: Any, batch: Any, plan: Any, record: Any, accepted: torch.Tensor) -> None:
        """Commits with the layer that `run` passed to the backend."""
        if not isinstance(plan, Adapted):
            raise foreign("plan", plan)
        own = call._replace(layer=self._activated_layer(call[0]))
        self.backend.commit(own, plan.batch, plan.plan, record, accepted)

    def _activated(self, call: Any) -> Any:
        """The call, with raw gates activated if the adapter adds `raw_gates` or `mixed_weights`."""
        layer = self._activated_layer(call[0])
        if layer is call[0]:
            return call
        compute = torch.promote_types(call.q.dtype, torch.float32)
        return call._replace(
            layer=layer,
            g=activate_gate(call.g, call[0], compute).to(compute),
            beta=activate_beta(call.beta, call[0].beta_scale, compute),
        )

    def _activated_layer(self, layer: Any) -> Any:
        if not self.added & {"raw_gates", "mixed_weights"}:
            return layer
        if layer.gate is None and layer.beta_scale is None:
            return layer
        own = layer.kept.get(Adapter)
        if own is None:
            raw: dict[str, Any] = dict.fromkeys(("gate", "A_log", "dt_bias", "lower_bound", "beta_scale"))
            own = layer.kept[Adapter] = replace(layer, **raw)
        return own


def adapted(backend: AnyBackend, features: Collection[str], needed: Collection[str]) -> AnyBackend:
    """The backend itself if it has all needed features, otherwise an `Adapter` around it.

    Args:
        backend: The backend.
        features: The features of the backend's registration.
        needed: The features that calls need.
    """
    if set(needed) <= set(features):
        return backend
    return cast(AnyBackend, Adapter(backend, features))
