"""Dispatches a layer's call to the backends that serve it in the current step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch

from switchrail._core import PAGED_OPS, BatchRoutes, BoundPlan, Registration
from switchrail.dispatch.part import Part, check_rows
from switchrail.errors import DispatchError
from switchrail.ops.adapter import ADAPTED, adapted
from switchrail.ops.backend import AnyBackend
from switchrail.ops.batch import Bounds, DeferredBatch, RowStatesBatch, SequenceBatch
from switchrail.ops.call import Layer, take_rows
from switchrail.ops.catalog import CONTRACTS
from switchrail.ops.steps import Call, agreed, checked_flags, complete, completing, declared

_log = logging.getLogger("switchrail.dispatch")

_OPS = {contract.layer: op for op, contract in CONTRACTS.items()}

Target = tuple[Callable[[Any, Any, Any], Any], int, bool]
"""A backend's `run`, the index of the `_User` that runs it, and whether `_Step.keep` gets its calls."""


@dataclass(frozen=True, slots=True)
class _User:
    """One backend that serves an op in one part of a step.

    Attributes:
        part: The index of the part.
        op: The op.
        backend: The backend.
        name: The backend's name.
        steps: The backend's optional steps (`switchrail.ops.steps`) that complete a plan of the part.
        defers: Whether the backend has the feature `deferred_commit`.
    """

    part: int
    op: str
    backend: AnyBackend
    name: str
    steps: Mapping[str, Call] = field(compare=False)
    defers: bool

    def batch(self, parts: Sequence[Part]) -> SequenceBatch:
        """The sequences of this user's part, in the form that the backend takes."""
        return parts[self.part].batch(self.op, defers=self.defers)

    def failure(self, parts: Sequence[Part], doing: str = "") -> str:
        """The start of the note on a backend's exceptions: `backend NAME failed in OP PHASE`."""
        return f"backend {self.name} failed in {doing}{self.op} {parts[self.part].phase}"


@dataclass(frozen=True, slots=True)
class _Table:
    """The backends that serve each layer's calls, in all steps with the same routes.

    Attributes:
        users: The backends of these steps; each makes a plan for its part of a step.
        targets: By layer, a tuple of each part's target; if there is one part, the target itself.
    """

    users: tuple[_User, ...]
    targets: dict[Layer, Any]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step that all backends in use have planned.

    Attributes:
        parts: The step's parts.
        users: The backends that planned the step.
        targets: As in `_Table`.
        planned: For each user, the batch and its plan.
    """

    parts: tuple[Part, ...]
    users: tuple[_User, ...]
    targets: dict[Layer, Any]
    planned: list[tuple[SequenceBatch, object]]


NOTHING: Final = Prepared((), (), {}, [])
"""A prepared step without parts."""


@dataclass(slots=True)
class _Step:
    """A step that is running, or was verified and can be committed.

    Attributes:
        prepared: The step's parts and plans.
        planned: `prepared.planned`, kept here because each call reads it.
        is_single: Whether `left` has a single target per layer instead of a tuple: the step has one part, and
            `elsewhere` is None.
        left: The layers that have not been called yet, with their targets.
        elsewhere: Runs the calls of layers without targets, which the step's plans don't cover.
        verified: The calls to commit, each with the index of its user and its record.
        deferred: The calls that a later verification will commit, each with the index of its user.
    """

    prepared: Prepared
    planned: list[tuple[SequenceBatch, object]]
    is_single: bool
    left: dict[Layer, Any]
    elsewhere: Callable[[Any], None] | None
    verified: list[tuple[int, Any, object]]
    deferred: list[tuple[int, Any]] = field(default_factory=list)

    def run(self, target: Target, call: Any) -> None:
        """Runs a part's call on its backend."""
        run, index, commits = target
        batch, plan = self.planned[index]
        record = run(call, batch, plan)
        if commits:
            self.keep(index, call, record)

    def keep(self, index: int, call: Any, record: object) -> None:
        """Keeps the call and its record for `commit`, or the call alone if its commit is deferred.

        Keeps nothing for a `RowStatesBatch`, which needs no commit.

        Raises:
            DispatchError: The record is None, but `commit` needs it.
        """
        batch = self.planned[index][0]
        if isinstance(batch, DeferredBatch):
            self.deferred.append((index, call))
            return
        if isinstance(batch, RowStatesBatch):
            return  # the backend wrote the state after each row
        if record is None:
            op = self.prepared.users[index].op
            raise DispatchError("run returned None in verify, expected a record for commit", op=op)
        self.verified.append((index, call, record))


_NO_STEP = _Step(NOTHING, [], False, {}, None, [])


class Dispatcher:
    """Runs the calls of one model's layers on the backends of its route plan.

    Each layer of the plan must be called exactly once per step; otherwise the step fails. Without this check,
    a model definition that skips a layer, or takes an unexpected path through its code, would silently give
    wrong results. The backends' `run` methods for all layers are looked up once for each combination of route
    tables, and cached.

    Attributes:
        bound: The route plan with its backends.
        ops: The ops whose calls are dispatched.
    """

    def __init__(
        self,
        bound: BoundPlan,
        ops: Collection[str] | None = None,
        needed: Mapping[str, Collection[str]] | None = None,
        announced: set[tuple[str, str, str]] | None = None,
        flags: Mapping[str, bool] | None = None,
    ) -> None:
        """Creates a dispatcher without layers. `add` adds the layers of the plan.

        Args:
            bound: The route plan with its backends.
            ops: The ops to dispatch; None means all ops of the plan. Only layers of these ops can be added.
            needed: By op, the features that the op's calls need. Backends that lack features are adapted if
                an `Adapter` can add them.
            announced: The (op, phase, backend) triples whose first use is already logged, shared by the
                dispatchers of a plan.
            flags: Flags of optional steps, True by default; see `switchrail.ops.steps`.

        Raises:
            ArgumentError: There is no such flag.
        """
        self.bound = bound
        self._flags = checked_flags(flags)
        self._needed = needed or {}
        self._features: dict[str, set[str]] = {}  # by op, the features that all backends have or are given
        self._adapters: dict[int, AnyBackend] = {}
        for backend in bound.plan.backends:
            claimed = set(backend.capabilities["features"])
            claimed |= ADAPTED.keys() & set(self._needed.get(backend.op, ()))
            self._features[backend.op] = self._features.get(backend.op, claimed) & claimed
        self._announced = set() if announced is None else announced
        self._ids: dict[str, set[int]] = {}
        for layer_id, op, _, _ in bound.plan.table:
            if ops is None or op in ops:
                self._ids.setdefault(op, set()).add(layer_id)
        self.ops = frozenset(self._ids)
        self._layers: dict[Layer, tuple[int, str]] = {}
        self._tables: dict[tuple[tuple[BatchRoutes, ...], frozenset[str]], _Table] = {}
        self._step = _NO_STEP
        self._verified: _Step | None = None

    def add(self, layer_id: int, layer: Layer) -> None:
        """Adds a layer's constant arguments for one op, so that its calls can be dispatched.

        Raises:
            ContractError: A tensor or an option breaks the op's contract, or needs a feature that one of the
                plan's backends lacks.
            DispatchError: The object is not a layer, the plan does not have this op for the layer id, or the
                layer was already added.
        """
        op = _OPS.get(type(layer))
        if op is None:
            valid = ", ".join(kind.__name__ for kind in _OPS)
            raise DispatchError(f"got a {type(layer).__name__}, expected one of {valid}", found=layer)
        CONTRACTS[op].check_layer(layer, self._features.get(op, ()))
        if (layer_id, op) in self._layers.values():
            raise DispatchError(f"layer {layer_id} already has its {op}", layer=layer_id, op=op, found=2)
        if layer in self._layers:
            raise DispatchError(
                f"this object is already the {op} of layer {self._layers[layer][0]}", op=op, found=2
            )
        ids = self._ids.get(op, set())
        if layer_id not in ids:
            valid = ", ".join(map(str, sorted(ids))) or "none"
            raise DispatchError(
                f"the plan has no {op} of layer {layer_id!r}; valid: {valid}", layer=layer_id, op=op, found=0
            )
        self._layers[layer] = layer_id, op

    def prepare(
        self,
        parts: Sequence[Part],
        bounds: Bounds | None = None,
        bound: BoundPlan | None = None,
        ops: Collection[str] | None = None,
    ) -> Prepared:
        """Lets each backend in use plan a step, once per part.

        Args:
            parts: The parts of the step; their rows must follow one another.
            bounds: Upper bounds of the steps that the result will be refreshed for; None if it serves only
                this step.
            bound: The plan with the backends; None means the dispatcher's own.
            ops: The ops to plan; None means all.

        Raises:
            DispatchError: A layer of the plan was not added, the parts' rows do not follow one another, or a
                part has no batch for an op.
            Exception: A backend's exception, with a note (PEP 678) that names the backend and the part.
        """
        check_rows(parts)
        routes = tuple(
            (bound or self.bound).at(part.phase, part.lengths, _cached(part, bounds)) for part in parts
        )
        key = routes, self.ops if ops is None else frozenset(ops)
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = self._table(*key)
        planned: list[tuple[SequenceBatch, object]] = []
        for user in table.users:
            batch = user.batch(parts)
            try:
                plan = user.backend.plan(parts[user.part].phase, batch, bounds)
                complete(user.steps, plan, batch, self._flags)
            except Exception as error:
                _note(error, user.failure(parts, "planning "))
                raise
            planned.append((batch, plan))
        return Prepared(tuple(parts), table.users, table.targets, planned)

    def refresh(self, prepared: Prepared, parts: Sequence[Part]) -> None:
        """Lets each backend update its plan in place for another step within the bounds.

        Raises:
            Exception: A backend's exception, with a note (PEP 678) that names the backend and the part.
        """
        for index, user in enumerate(prepared.users):
            batch = user.batch(parts)
            plan = prepared.planned[index][1]
            try:
                user.backend.refresh(plan, batch)
                complete(user.steps, plan, batch, self._flags)
            except Exception as error:
                _note(error, user.failure(parts, "refreshing its plan of "))
                raise
            prepared.planned[index] = batch, plan

    def once(
        self, name: str, routes: Iterable[BatchRoutes], ops: Collection[str], **arguments: object
    ) -> Any:
        """Runs an optional step that belongs to no plan, once on each backend that has this step.

        Args:
            name: The optional step.
            routes: The route tables with the backends.
            ops: The ops whose backends run the optional step.
            **arguments: The optional step's arguments.

        Returns:
            The result, which must be equal for all backends; None if no backend has the optional step.

        Raises:
            DispatchError: The results of backends differ.
            Exception: A backend's exception, with a note (PEP 678) that names the backend.
        """
        results: dict[str, Any] = {}
        seen: set[int] = set()
        for route in routes:
            for layer_id, op, backend_name in route.table:
                registration = route.registration(op, layer_id)
                backend = self._adapted(route.backend(op, layer_id), registration)
                if op not in ops or id(backend) in seen:
                    continue
                seen.add(id(backend))
                if name in declared(registration.capabilities["features"]):
                    where = f"{backend_name} for {op} {route.phase}"
                    try:
                        results[where] = backend.optional_steps()[name](**arguments)
                    except Exception as error:
                        _note(error, f"backend {where} failed in {name}")
                        raise
        return agreed(name, results)

    def running(
        self, parts: Sequence[Part] | Prepared, elsewhere: Callable[[Any], None] | None = None
    ) -> AbstractContextManager[None]:
        """A context manager that starts a step and ends it. In its block, call the model.

        An earlier step that did not end, for example because of an interrupt, is discarded.

        Args:
            parts: The parts of the step, or the result of `prepare`.
            elsewhere: Runs the calls of ops that were not planned; None if there are no such calls.

        Raises:
            DispatchError: As for `prepare`; or a layer was not called in the block.
            Exception: A backend's exception, with a note (PEP 678) that names the backend and the part.
        """
        prepared = parts if isinstance(parts, Prepared) else self.prepare(parts)
        is_single = len(prepared.parts) == 1
        left = prepared.targets.copy()
        if elsewhere is not None:
            if is_single:
                left = {layer: (target,) for layer, target in left.items()}
            is_single, left = False, dict.fromkeys(self._layers, ()) | left
        return _Running(self, _Step(prepared, prepared.planned, is_single, left, elsewhere, []))

    def _begin(self, step: _Step) -> None:
        self._verified = None
        self._step = step

    def _end(self, step: _Step, *, failed: bool) -> None:
        if self._step is step:
            self._step = _NO_STEP
        if failed:
            return
        if step.left:
            layer_id, op = min(self._layers[layer] for layer in step.left)
            raise DispatchError(
                f"layer {layer_id} did not run its {op} in this step (missing calls: {len(step.left)}); "
                "the model definition skipped it, or called a function that is not hooked",
                layer=layer_id,
                op=op,
                found=0,
            )
        if step.verified or step.deferred:
            self._verified = step

    def dispatch(self, call: Any) -> None:
        """Runs a layer's call, which contains all rows of the step: each part's rows on that part's backend.

        Raises:
            DispatchError: No step is running, the layer was already called in this step or never added, or
                its backend returned no record in verify.
            Exception: A backend's exception, with a note (PEP 678) that names the backend and the part.
        """
        step = self._step
        try:
            targets = step.left.pop(call[0])
        except KeyError:
            raise self._refusal(call[0]) from None
        try:
            if step.is_single:  # inlines `_Step.run`, to save a function call
                run, index, commits = targets
                batch, plan = step.planned[index]
                record = run(call, batch, plan)
                if commits:
                    step.keep(index, call, record)
            elif not targets:
                assert step.elsewhere is not None
                step.elsewhere(call)
            else:
                for part, target in zip(step.prepared.parts, targets, strict=True):
                    index = target[1]
                    step.run(target, take_rows(call, part.rows))
        except BaseException as error:
            step.left[call[0]] = targets
            if targets and isinstance(error, Exception):
                user, (layer_id, _) = step.prepared.users[index], self._layers[call[0]]
                _note(error, f"{user.failure(step.prepared.parts)} of layer {layer_id}")
            raise

    def dispatch_rows(self, call: Any) -> None:
        """Dispatches a call that may have padding rows after the step's rows."""
        parts = self._step.prepared.parts
        self.dispatch(take_rows(call, parts[0].rows) if len(parts) == 1 else call)

    def commit(self, accepted: torch.Tensor, *, again: bool = False) -> None:
        """Writes the states after the accepted tokens of the last step's verification.

        Layers whose batch is a `RowStatesBatch` or a `DeferredBatch` are skipped. The state of each other
        layer is written once, even if a backend fails and `commit` is called again. The next step discards
        verifications that were not committed.

        Args:
            accepted: See `Backend.commit`.
            again: Whether the verification can be committed again, as when a commit is run and then captured.
        """
        step = self._verified
        done: list[tuple[int, Any, object]] = []
        while step is not None and step.verified:
            index, call, record = step.verified[-1]
            batch, plan = step.planned[index]
            step.prepared.users[index].backend.commit(call, batch, plan, record, accepted)
            done.append(step.verified.pop())
        if step is not None and again:
            step.verified.extend(reversed(done))
        else:
            self._verified = None

    def settling(self, batch: DeferredBatch) -> list[Callable[[], None]]:
        """Plans the commits that the last verification deferred.

        Args:
            batch: A batch whose sequences have no rows, only deferred commits.

        Returns:
            For each layer, a function that runs its commit.

        Raises:
            Exception: A backend's exception, with a note (PEP 678) that names the backend and the part.
        """
        step = self._verified
        plans: dict[int, object] = {}
        found = list[Callable[[], None]]()
        for index, call in [] if step is None else step.deferred:
            assert step is not None
            user = step.prepared.users[index]
            try:
                if index not in plans:
                    plans[index] = user.backend.plan("verify", batch)
            except Exception as error:
                _note(error, user.failure(step.prepared.parts, "planning commits of "))
                raise
            layer, *tensors = take_rows(call, slice(0, 0))
            # copies, as views would keep the memory of the call's rows
            empty = type(call)(layer, *(one if one is None else one.clone() for one in tensors))
            found.append(partial(user.backend.run, empty, batch, plans[index]))
        return found

    def forget(self) -> None:
        """Discards the last step's verification."""
        self._verified = None

    def _table(self, routes: tuple[BatchRoutes, ...], ops: Collection[str]) -> _Table:
        missing = {(id, op) for op, ids in self._ids.items() for id in ids} - set(self._layers.values())
        if missing:
            layer_id, op = min(missing)
            raise DispatchError(
                f"the plan has {op} of layer {layer_id}, which was not added (missing: {len(missing)})",
                layer=layer_id,
                op=op,
                found=0,
            )
        users: list[_User] = []
        planned = {layer: (id, op) for layer, (id, op) in self._layers.items() if op in ops}
        targets: dict[Layer, list[Target]] = {layer: [] for layer in planned}
        for index, route in enumerate(routes):
            names = {(layer, op): name for layer, op, name in route.table}
            for layer, (layer_id, op) in planned.items():
                own, registration = route.backend(op, layer_id), route.registration(op, layer_id)
                backend = self._adapted(own, registration)
                steps = completing(backend, registration.capabilities["features"], route.phase)
                defers = "deferred_commit" in registration.capabilities["features"]
                user = _User(index, op, backend, names[layer_id, op], steps, defers)
                if user not in users:
                    users.append(user)
                    self._announce(route.phase, user)
                commits = route.phase == "verify" and op not in PAGED_OPS
                run = route.lookup(op, layer_id) if backend is own else backend.run
                targets[layer].append((run, users.index(user), commits))
        single = len(routes) == 1
        return _Table(
            tuple(users), {layer: each[0] if single else tuple(each) for layer, each in targets.items()}
        )

    def _adapted(self, backend: AnyBackend, registration: Registration) -> AnyBackend:
        if id(backend) not in self._adapters:
            claimed, needed = registration.capabilities["features"], self._needed.get(registration.op, ())
            self._adapters[id(backend)] = adapted(backend, claimed, needed)
        return self._adapters[id(backend)]

    def _announce(self, phase: str, user: _User) -> None:
        """Logs the first use of a backend for an op and a phase, once per plan."""
        used = op, phase, name = user.op, phase, user.name
        if used not in self._announced:
            self._announced.add(used)
            _log.info("first use of %s %s: %s", op, phase, name)
            for step in user.steps:
                _log.info("%s of %s %s: %s", step, op, phase, name)

    def _refusal(self, layer: Layer) -> DispatchError:
        if layer not in self._layers:
            return DispatchError(f"got a call of a {type(layer).__name__} that was never added")
        layer_id, op = self._layers[layer]
        if self._step is _NO_STEP:
            return DispatchError(
                f"layer {layer_id} ran its {op} outside of a step; a model with dispatched layers "
                "can only be called within a step",
                layer=layer_id,
                op=op,
                found=1,
            )
        return DispatchError(
            f"layer {layer_id} ran its {op} twice in one step", layer=layer_id, op=op, found=2
        )


@dataclass(slots=True)
class _Running:
    """The context manager of `Dispatcher.running`; a generator function would take four times as long."""

    dispatcher: Dispatcher
    step: _Step

    def __enter__(self) -> None:
        self.dispatcher._begin(self.step)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.dispatcher._end(self.step, failed=kind is not None)


def _cached(part: Part, bounds: Bounds | None) -> tuple[int, ...] | None:
    """An upper bound of each sequence's cached tokens; None without a paged cache."""
    if part.pages is None:
        return None
    return part.pages.kv_seqlens if bounds is None else (bounds.tokens,) * len(part.lengths)


def _note(error: Exception, text: str) -> None:
    error.__notes__ = [*getattr(error, "__notes__", ()), text]  # type: ignore[attr-defined]
