"""From a layer's call to the backends that serve it in the step that runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from switchrail._core import BatchRoutes, BoundPlan
from switchrail.dispatch.part import Part
from switchrail.errors import DispatchError
from switchrail.ops.backend import AnyBackend
from switchrail.ops.batch import SequenceBatch
from switchrail.ops.call import Layer, take_rows
from switchrail.ops.catalog import CONTRACTS

_OPS = {contract.layer: op for op, contract in CONTRACTS.items()}

Target = tuple[Callable[[Any, Any, Any], Any], int]
"""A backend's `run`, and which of the step's plans it is given."""


@dataclass(frozen=True, slots=True)
class _User:
    """A backend that serves an op in a part of a step.

    Attributes:
        part: The number of the part.
        op: The op.
        backend: The backend.
        name: Its name.
    """

    part: int
    op: str
    backend: AnyBackend
    name: str


@dataclass(frozen=True, slots=True)
class _Table:
    """Where the layers' calls go in steps of one kind.

    Attributes:
        users: Whose plans such a step needs.
        targets: Of each layer the target of each part.
    """

    users: tuple[_User, ...]
    targets: dict[Layer, tuple[Target, ...]]


class Dispatcher:
    """Runs the calls of one model's layers on the backends that its route plan chose.

    In each step every layer that was added must come by exactly once: a model definition that skips one, or
    takes another path through its code, would otherwise mix sequences without a word. What a step needs
    besides its plans is found out once for each combination of route tables, and kept.
    """

    def __init__(self, bound: BoundPlan) -> None:
        """Serves the layers of a plan that are added.

        Args:
            bound: The route plan with its backends.
        """
        self.bound = bound
        self._layers: dict[Layer, tuple[int, str]] = {}
        self._tables: dict[tuple[BatchRoutes, ...], _Table] = {}
        self._parts: Sequence[Part] = ()
        self._users: tuple[_User, ...] = ()
        self._planned: list[tuple[SequenceBatch, object]] = []
        self._left: dict[Layer, tuple[Target, ...]] = {}
        self._verified: list[tuple[int, Any, object]] = []
        self._is_running = False

    def add(self, layer_id: int, layer: Layer) -> None:
        """Adds what never changes for an op of a layer; calls of it can be dispatched from then on.

        Raises:
            ContractError: An option breaks the op's contract, or needs a feature that a backend lacks which
                the plan has for the op.
            DispatchError: The plan has no such op of that layer, or it was added already.
        """
        op = _OPS[type(layer)]
        serving = [set(one.capabilities["features"]) for one in self.bound.plan.backends if one.op == op]
        common = set.intersection(*serving) if serving else set()
        CONTRACTS[op].check_layer(layer, common)
        if (layer_id, op) in self._layers.values():
            raise DispatchError(f"layer {layer_id} has its {op} already", layer=layer_id, op=op, found=2)
        layers = sorted({known for known, served, _, _ in self.bound.plan.table if served == op})
        if layer_id not in layers:
            raise DispatchError(
                f"the plan has no {op} of layer {layer_id!r}; valid: {', '.join(map(str, layers)) or 'none'}",
                layer=layer_id,
                op=op,
                found=0,
            )
        self._layers[layer] = layer_id, op
        self._tables.clear()

    @contextmanager
    def running(self, parts: Sequence[Part]) -> Iterator[None]:
        """Lets the calls in the block belong to a step; each backend in use plans it once a part.

        Raises:
            DispatchError: A step runs already; or the block ended, and a layer was not called.
            Exception: What a backend raised, with a note (PEP 678) that says which one, and where.
        """
        if self._is_running:
            raise DispatchError("a step runs already; another one can run when it has ended")
        routes = tuple(
            self.bound.at(part.phase, part.lengths, None if part.pages is None else part.pages.kv_seqlens)
            for part in parts
        )
        table = self._tables.get(routes)
        if table is None:
            table = self._tables[routes] = self._table(routes)
        planned: list[tuple[SequenceBatch, object]] = []
        for user in table.users:
            part = parts[user.part]
            batch = part.batch(user.op)
            try:
                planned.append((batch, user.backend.plan(part.phase, batch)))
            except Exception as error:
                _note(error, f"backend {user.name} failed in planning {user.op} {part.phase}")
                raise
        try:
            self._parts, self._users, self._planned, self._verified = parts, table.users, planned, []
            self._left, self._is_running = dict(table.targets), True
            yield
            left = [self._layers[layer] for layer in self._left]
        finally:
            self._left, self._is_running = {}, False
        if left:
            layer_id, op = min(left)
            raise DispatchError(
                f"layer {layer_id} did not run its {op} in this step ({len(left)} calls are missing); the "
                "model definition took a path that nobody sees",
                layer=layer_id,
                op=op,
                found=0,
            )

    def dispatch(self, call: Any) -> None:
        """Runs a layer's call, which has all rows of the step, on the backend of each part.

        Raises:
            DispatchError: No step runs, the layer was called in it already, or it was never added.
            Exception: What the backend raised, with a note (PEP 678) that says which one, and where.
        """
        layer = call[0]
        targets = self._left.pop(layer, None)
        if targets is None:
            raise self._refusal(layer)
        if len(targets) == 1:
            self._run(call, targets[0])
            return
        for part, target in zip(self._parts, targets, strict=True):
            self._run(take_rows(call, part.rows), target)

    def commit(self, accepted: torch.Tensor) -> None:
        """Writes the states after the accepted tokens of the last step's verification, in all layers.

        Args:
            accepted: As `Backend.commit` takes it.
        """
        verified, self._verified = self._verified, []
        for index, call, record in verified:
            batch, plan = self._planned[index]
            self._users[index].backend.commit(call, batch, plan, record, accepted)

    def _run(self, call: Any, target: Target) -> None:
        run, index = target
        batch, plan = self._planned[index]
        try:
            record = run(call, batch, plan)
        except Exception as error:
            layer_id, op = self._layers[call[0]]
            user = self._users[index]
            phase = self._parts[user.part].phase
            _note(error, f"backend {user.name} failed in {op} {phase} of layer {layer_id}")
            raise
        if record is not None:
            self._verified.append((index, call, record))

    def _table(self, routes: tuple[BatchRoutes, ...]) -> _Table:
        users: list[_User] = []
        targets: dict[Layer, list[Target]] = {layer: [] for layer in self._layers}
        for index, route in enumerate(routes):
            names = {(layer, op): name for layer, op, name in route.table}
            for layer, (layer_id, op) in self._layers.items():
                user = _User(index, op, route.backend(op, layer_id), names[layer_id, op])
                if user not in users:
                    users.append(user)
                targets[layer].append((route.lookup(op, layer_id), users.index(user)))
        return _Table(tuple(users), {layer: tuple(each) for layer, each in targets.items()})

    def _refusal(self, layer: Layer) -> DispatchError:
        if layer not in self._layers:
            return DispatchError(f"a call of a {type(layer).__name__} that was not added to the dispatcher")
        layer_id, op = self._layers[layer]
        if not self._is_running:
            return DispatchError(
                f"layer {layer_id} ran its {op} outside of a step; a model whose calls are dispatched is "
                "called by what runs its steps",
                layer=layer_id,
                op=op,
                found=1,
            )
        return DispatchError(
            f"layer {layer_id} ran its {op} twice in one step", layer=layer_id, op=op, found=2
        )


def _note(error: Exception, text: str) -> None:
    error.__notes__ = [*getattr(error, "__notes__", ()), text]  # type: ignore[attr-defined]


__all__ = ["Dispatcher"]
