"""Adapts backends that lack some features of their op to calls on an engine's memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import torch

from switchrail.ops.backend import AnyBackend, Backend, foreign
from switchrail.ops.batch import Bounds, Phase, SequenceBatch, StateBatch
from switchrail.ops.catalog import CONTRACTS
from switchrail.ops.contract import Contract
from switchrail.ops.delta import activate_beta, activate_gate

ADAPTED: Mapping[str, str] = {
    "index_views": "tables of slots, pages and lengths are copied once a step",
    "mixed_weights": "gates are activated before each call",
    "null_slot": "slot 0 becomes -1 in a copy of the tables, once a step",
    "raw_gates": "gates are activated before each call",
    "read_only_states": "states that are not to be kept go to slot 0",
    "strided_out": "results are copied from dense memory after each call",
    "time_innermost": "rows are copied before each call",
}
"""The features that an `Adapter` adds, each with a description of how."""

_TABLES: Mapping[str, torch.dtype] = {
    "cu_seqlens": torch.int32,
    "read_slots": torch.int64,
    "write_slots": torch.int64,
    "has_initial_state": torch.bool,
    "checkpoint_slots": torch.int64,
    "row_slots": torch.int64,
    "parents": torch.int32,
    "page_table": torch.int32,
    "kv_lens": torch.int32,
}


def sequences(seqlens: tuple[int, ...], device: torch.device | str) -> dict[str, Any]:
    """The fields `seqlens` and `cu_seqlens` of a batch from the host's lengths, without waiting.

    Args:
        seqlens: The number of rows of each sequence.
        device: The device of the call.
    """
    starts = torch.zeros(len(seqlens) + 1, dtype=torch.int32)
    starts[1:] = torch.tensor(seqlens, dtype=torch.int32).cumsum(0)
    return {"seqlens": seqlens, "cu_seqlens": starts.to(device, non_blocking=True)}


def plain(batch: SequenceBatch, *, wide: Collection[str] = ()) -> Any:
    """The batch in a form that needs no feature of `ADAPTED`; the same object if possible.

    Tables of another dtype, with gaps, or with 0 as the null slot are copied.

    Args:
        batch: The batch.
        wide: Tables that may have gaps between rows.
    """
    changed: dict[str, Any] = {}
    for name, dtype in _TABLES.items():
        table = getattr(batch, name, None)
        if table is not None and (table.dtype is not dtype or not _is_dense(table, name in wide)):
            changed[name] = table.to(dtype).contiguous()
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


def _is_dense(table: torch.Tensor, wide: bool) -> bool:
    return table.is_contiguous() or (wide and table.stride(-1) == 1)


@dataclass(slots=True)
class Adapted:
    """A plan, and the plain form of the batch that it was made for.

    Attributes:
        batch: The plain form.
        plan: The backend's plan.
    """

    batch: Any
    plan: Any

    @property
    def seqlens(self) -> tuple[int, ...]:
        """The lengths of the batch's sequences."""
        lengths: tuple[int, ...] = self.batch.seqlens
        return lengths

    def update(self, batch: SequenceBatch, *, wide: Collection[str] = ()) -> Any:
        """Take another batch's contents in place, and return its plain form on the plan's own tables."""
        new = plain(batch, wide=wide)
        kept: dict[str, torch.Tensor] = {}
        for field in fields(new):
            own, value = getattr(self.batch, field.name), getattr(new, field.name)
            if isinstance(value, torch.Tensor) and value is not getattr(batch, field.name):
                own.copy_(value)
                kept[field.name] = own
        self.batch = replace(new, **kept) if kept else new
        return self.batch


def dense_call(contract: Contract, call: Any) -> tuple[Any, list[tuple[torch.Tensor, torch.Tensor]]]:
    """A call with dense results, and with copies of inputs whose time axis is innermost.

    Returns:
        The call, the same object if it needs no copy, and pairs of a result and the dense memory whose
        contents must be copied to it after the call.
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


class Adapter(Backend[Any, Any]):
    """A backend with added features: copies small tables or rows, never pools or caches.

    Args:
        backend: The backend.
        features: The features of its registration.

    Attributes:
        backend: The backend.
        added: The features that it adds.
    """

    def __init__(self, backend: AnyBackend, features: Collection[str]) -> None:
        super().__init__(backend.config)
        self.backend = backend
        self._contract = CONTRACTS[backend.op]
        self._own = tuple(features)
        self.added = frozenset(ADAPTED) & self._contract.features.keys() - set(features)
        self._features = (*self._own, *sorted(self.added))

    def plan(self, phase: Phase, batch: SequenceBatch, bounds: Bounds | None = None) -> Adapted:
        """Plan the plain form of the batch."""
        self._contract.check_batch(phase, batch, self._features)
        own = plain(batch)
        return Adapted(own, self.backend.plan(phase, own, bounds))

    def refresh(self, plan: Any, batch: SequenceBatch) -> None:
        """Copy the tables of another batch into those of the plan."""
        if not isinstance(plan, Adapted):
            raise foreign("plan", plan)
        self.backend.refresh(plan.plan, plan.update(batch))

    def run(self, call: Any, batch: SequenceBatch, plan: Any) -> Any:
        """Run the call on adapted rows."""
        self._contract.check_call(call, batch, self._features)
        if not isinstance(plan, Adapted) or plan.seqlens != batch.seqlens:
            raise foreign("plan", plan)
        own, results = dense_call(self._contract, self._activated(call))
        record = self.backend.run(own, plan.batch, plan.plan)
        for result, dense in results:
            result.copy_(dense)
        return record

    def commit(self, call: Any, batch: Any, plan: Any, record: Any, accepted: torch.Tensor) -> None:
        """Commit with the adapted layer."""
        if not isinstance(plan, Adapted):
            raise foreign("plan", plan)
        own = call._replace(layer=self._activated_layer(call[0]))
        self.backend.commit(own, plan.batch, plan.plan, record, accepted)

    def _activated(self, call: Any) -> Any:
        """The call with activated gates, if the backend supports no raw ones."""
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
    """The backend itself if it has all needed features, otherwise an `Adapter` of it.

    Args:
        backend: The backend.
        features: The features of its registration.
        needed: The features that calls need.
    """
    if set(needed) <= set(features):
        return backend
    return cast(AnyBackend, Adapter(backend, features))


__all__ = ["ADAPTED", "Adapted", "Adapter", "adapted", "dense_call", "plain", "sequences"]
