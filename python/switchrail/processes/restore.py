"""Rebuilds, in a worker process, a runtime from the state that another process sent."""

from __future__ import annotations

import pkgutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from switchrail import config as configs
from switchrail.checks import shown
from switchrail.current import peek_current, swap_current
from switchrail.errors import InstallationError, SwitchrailError
from switchrail.forks import SingleFlight
from switchrail.hooks import chain
from switchrail.implementation import Implementation, check_class
from switchrail.processes.differences import differences
from switchrail.processes.state import HOOK_ARGUMENTS, BackendState, HookState, State, read
from switchrail.runtime import Runtime

if TYPE_CHECKING:
    from switchrail._core import Registration, RoutePlan
    from switchrail.hooks import Hook

# Threads restore one at a time. If the current runtime already has the state, restoring returns that runtime.
_restoring = SingleFlight()


def restore(state: State) -> Runtime:
    """See `RuntimeState.restore`."""

    def work() -> Runtime:
        before = peek_current()
        if before is not None and not _differences(before, state):
            return before
        runtime = Runtime()
        swap_current(runtime)  # user modules that are imported below register into this runtime
        try:
            _refuse([*_bring(runtime, state), *_differences(runtime, state)])
        except BaseException:
            swap_current(before)
            runtime.hooks.clear()
            raise
        if before is not None:
            before.hooks.clear()
        return runtime

    return _restoring.run(work)


def make_plans(state: State, runtime: Runtime) -> tuple[RoutePlan, ...]:
    """See `RuntimeState.make_plans`."""
    plans = tuple(runtime.plan(plan.layout, **plan.request) for plan in state.plans)
    _refuse(differences(read(runtime, plans)[0], state))
    return plans


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise InstallationError(
            f"this process's installation differs from the original process's: {'; '.join(problems)}",
            differences=tuple(problems),
        )


def _differences(runtime: Runtime, state: State) -> tuple[str, ...]:
    return differences(read(runtime)[0], replace(state, plans=()))


def _bring(runtime: Runtime, state: State) -> Iterator[str]:
    """Fills a new runtime from a state; yields the problems on the way."""
    runtime.hooks.strict = state.strict_hooks
    try:
        if state.platform is not None:
            runtime.use_platform(state.platform)
    except SwitchrailError as error:
        yield str(error)
    wanted = {_owned(backend.registration) for backend in state.backends}
    runtime._loader.load_as(state.plugins, state.paths, lambda: _withdraw_cleared(runtime, wanted))
    found: dict[str, Any] = {}
    for path in dict.fromkeys(_paths(state)):
        try:
            found[path] = pkgutil.resolve_name(path)
        except (Exception, SystemExit) as error:
            yield f"{path} is not found: {shown(error, None)}"
    stacks: dict[tuple[str, str], list[BackendState]] = {}
    for registration in runtime._core.snapshot().backends:
        stacks[registration.op, registration.name] = []
    for backend in state.backends:
        stacks.setdefault((backend.registration.op, backend.registration.name), []).append(backend)
    for key, stack in stacks.items():
        yield from _stack(runtime, key, stack, found)
    yield from _hooks(runtime, state.hooks, found)


def _owned(registration: Registration) -> tuple[str, str, object]:
    origin = registration.to_dict()["origin"]
    return registration.op, registration.name, (origin.get("distribution"), origin.get("plugin"))


def _withdraw_cleared(runtime: Runtime, wanted: Collection[tuple[str, str, object]]) -> None:
    """Withdraws registrations that the original runtime withdrew, so that later plugins can use the names."""
    cleared = [each for each in runtime._core.snapshot().backends if _owned(each) not in wanted]
    with runtime._open() as staging:
        for registration in cleared:
            staging.registrations.withdraw(registration)


def _paths(state: State) -> Iterator[str]:
    for backend in state.backends:
        if backend.is_imported:
            yield backend.registration.path
        if backend.config_type is not None:
            yield backend.config_type
    for hook in state.hooks:
        if hook.fn is not None:
            yield hook.fn


def _stack(
    runtime: Runtime, key: tuple[str, str], wanted: Sequence[BackendState], found: Mapping[str, Any]
) -> Iterator[str]:
    """Replaces the registrations of one op and name by `wanted`, in the same order."""
    here = runtime._core.stack(*key)
    if [*map(_document, here)] == [_document(backend.registration) for backend in wanted]:
        return
    known = [
        (_document(registration, configured=False), runtime._core.object(registration.id))
        for registration in here
    ]
    made: list[tuple[Registration, Implementation]] = []
    try:
        for backend in wanted:
            document = _document(backend.registration, configured=False)
            implementation = next((each for other, each in known if other == document), None)
            if implementation is None:
                implementation = _implementation(backend, found)
            if implementation is None:
                return  # `restore` compares the runtimes afterwards, and reports the missing backend
            made.append((backend.registration, implementation))
        with runtime._open() as staging:
            for registration in here:
                staging.registrations.withdraw(registration)
        for registration, implementation in made:
            _register(runtime, registration, implementation)
    except SwitchrailError as error:
        yield str(error)


def _document(registration: Registration, *, configured: bool = True) -> dict[str, Any]:
    """A registration as data that is equal in all processes.

    The plugin's version is left out: `differences` compares it once per plugin.
    """
    document: dict[str, Any] = registration.to_dict()
    del document["id"]
    document["origin"].pop("version", None)
    if not configured:
        del document["configuration"]
    return document


def _implementation(backend: BackendState, found: Mapping[str, Any]) -> Implementation | None:
    """The implementation of a registration by the user.

    None for any other registration, or if its class or its configuration type could not be imported.
    """
    registration = backend.registration
    if registration.to_dict()["origin"]["kind"] != "user":
        return None
    target, config_type = registration.path, None
    if backend.config_type is not None:
        if backend.config_type not in found:
            return None
        config_type = found[backend.config_type]
    if backend.is_imported:
        if registration.path not in found:
            return None
        target = found[registration.path]
        check_class(
            target,
            *(registration.name, registration.op, registration.path, registration.phases),
            registration.capabilities["features"],
        )
    return Implementation(target, config_type)


def _register(runtime: Runtime, registration: Registration, implementation: Implementation) -> None:
    op, name, document = registration.op, registration.name, registration.to_dict()
    if implementation.config_type is not None:
        where = f"configuration of {op} backend {name!r}"
        configs.validate(implementation.config_type, registration.effective_config, where)
    capabilities = document["spec"].pop("capabilities")
    capabilities["devices"] = [
        (device["kind"], device["min_capability"], device["max_capability"])
        for device in capabilities["devices"]
    ]
    with runtime._open(document["origin"]) as staging:
        staging.registrations.add({**document["spec"], **capabilities}, implementation, True)
        if document["configuration"]:
            staging.registrations.configure(op, name, document["configuration"])


def _hooks(runtime: Runtime, wanted: Sequence[HookState], found: Mapping[str, Any]) -> Iterator[str]:
    """Replaces the runtime's hooks by `wanted`, in the same order."""
    here = [hook for hook in chain.added() if hook.owner is runtime.hooks]
    known: dict[tuple[Any, ...], list[Hook]] = {}
    for hook in here:
        known.setdefault(_key(hook.target_name, hook), []).append(hook)
    hooks: dict[Hook, HookState] = {}
    try:
        for state in wanted:
            same = known.get(_key(state.target, state))
            if same:
                hook = same.pop(0)
                hooks[hook if hook.strict == state.strict else replace(hook, strict=state.strict)] = state
            elif state.fn is not None and state.fn in found:
                options: Any = {name: getattr(state, name) for name in HOOK_ARGUMENTS}
                hooks[runtime.hooks.prepare(state.target, found[state.fn], state.kind, **options)] = state
            else:
                return  # `restore` compares the runtimes afterwards, and reports the missing hook
        if [*hooks] != here:
            runtime.hooks.remove(*here)
            runtime.hooks.commit([*hooks], strict=False)
        runtime.hooks.disable(*(hook for hook, state in hooks.items() if not state.is_enabled))
        runtime.hooks.enable(*(hook for hook, state in hooks.items() if state.is_enabled))
    except SwitchrailError as error:
        yield str(error)


def _key(target: str, hook: Hook | HookState) -> tuple[Any, ...]:
    return target, hook.kind, hook.name, hook.source, hook.plugin
