"""The contents of a runtime as data."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from switchrail import _core
from switchrail.errors import InstallationError
from switchrail.hooks import chain
from switchrail.processes import named

if TYPE_CHECKING:
    from switchrail._core import Layout, Plugin, Registration, RoutePlan
    from switchrail.hooks import Hook
    from switchrail.implementation import Implementation
    from switchrail.runtime import Runtime


@dataclass(frozen=True, slots=True)
class BackendState:
    """A registration, and the paths to import its implementation from.

    Attributes:
        registration: The registration.
        is_imported: True if the user registered the backend with a class; False if with the path of a class,
            or if the registration is not the user's.
        config_type: The path of the configuration's type; None if the backend has no configuration, or if the
            registration is not the user's.
    """

    registration: Registration
    is_imported: bool
    config_type: str | None


@dataclass(frozen=True, slots=True)
class HookState:
    """A hook, and the path to import its callable from.

    Attributes:
        target: The dotted path of the hook's target.
        kind: `before`, `after`, `around` or `replace`.
        name: The module and qualified name of the callable.
        fn: The path to import the callable from; None if a plugin provides it.
        source: The distribution that provides the hook, or another name for the hook's author.
        plugin: The plugin that added the hook, or None.
        version: The distribution's version, or None.
        priority: Hooks of higher priority are nearer to the caller.
        before: Sources, or names of hooks, that run after this one.
        after: Sources, or names of hooks, that run before this one.
        strict: Whether a missing or unfit target is an error.
        is_enabled: Whether the hook is enabled.
    """

    target: str
    kind: Any
    name: str
    fn: str | None
    source: str
    plugin: str | None
    version: str | None
    priority: int
    before: tuple[str, ...]
    after: tuple[str, ...]
    strict: bool
    is_enabled: bool


HOOK_ARGUMENTS = ("source", "plugin", "version", "priority", "before", "after", "strict")
"""The fields of a `HookState` that are options of `Hooks.prepare`."""


@dataclass(frozen=True, slots=True)
class PlanState:
    """The arguments that a route plan was made from, and its routes.

    Attributes:
        layout: The model's layout.
        request: The arguments of `Runtime.plan`.
        routes: Tuples of layer id, op, phase and backend name, as in `RoutePlan.table`.
        fingerprint: The plan's fingerprint.
    """

    layout: Layout
    request: Mapping[str, Any] = field(hash=False)
    routes: tuple[tuple[int, str, str, str], ...]
    fingerprint: str


@dataclass(frozen=True, slots=True)
class State:
    """The data of a `RuntimeState`.

    Attributes:
        fingerprint: The runtime's fingerprint, without plans.
        version: Switchrail's version.
        paths: The paths searched for plugins; None means `sys.path`.
        plugins: All plugins found; first the loaded ones, in the order of loading.
        packages: Versions of the distributions that registered backends require; None if not installed.
        backends: All registrations, including overridden ones. Registrations of one op and name are in the
            order in which they were made.
        hooks: All hooks, including waiting and disabled ones, in the order in which they were added.
        chains: For each target, its enabled hooks in the order in which they run.
        strict_hooks: The value of `Hooks.strict`.
        platform: The name of the platform that the program set; None if it set none.
        plans: The plans given to `RuntimeState.of`.
    """

    fingerprint: str
    version: str
    paths: tuple[str, ...] | None
    plugins: tuple[Plugin, ...]
    packages: Mapping[str, str | None] = field(hash=False)
    backends: tuple[BackendState, ...]
    hooks: tuple[HookState, ...]
    chains: tuple[tuple[str, tuple[str, ...]], ...]
    strict_hooks: bool
    platform: str | None
    plans: tuple[PlanState, ...]

    def values(self) -> tuple[Any, ...]:
        """The attributes' values, in the order of the class."""
        return tuple(getattr(self, one.name) for one in fields(self))

    def __reduce__(self) -> tuple[Any, tuple[type[State], str, bytes]]:
        return _open, (type(self), self.version, pickle.dumps(self.values()))


def read(runtime: Runtime, plans: Sequence[RoutePlan] = ()) -> tuple[State, list[str]]:
    """The state of a runtime, and a problem for each object that another process can't find by name."""
    installed = runtime._loader.installed()
    while True:
        problems: list[str] = []
        snapshot = runtime._core.snapshot()
        backends = tuple(
            _backend(registration, runtime._core.object(registration.id), problems)
            for registration in snapshot.backends
        )
        fingerprint = runtime._fingerprint()
        loaded = {
            (plugin.distribution, plugin.name)
            for plugin in runtime._loader.plugins
            if plugin.state == "loaded"
        }
        hooks = tuple(
            _hook(hook, problems, is_users=(hook.source, hook.plugin) not in loaded)
            for hook in chain.added()
            if hook.owner is runtime.hooks
        )
        state = State(
            fingerprint=fingerprint.digest,
            version=fingerprint.inputs["switchrail"],
            paths=runtime._loader.paths,
            plugins=runtime._loader.in_order(),
            packages=installed.required(snapshot.backends),
            backends=backends,
            hooks=hooks,
            chains=tuple((target, tuple(hooks)) for target, hooks in runtime.hooks.chains()),
            strict_hooks=runtime.hooks.strict,
            platform=_platform(runtime, problems),
            plans=tuple(map(_plan, plans)),
        )
        if runtime._core.version == snapshot.version:  # otherwise another thread has registered something
            return state, problems


def _open(cls: type[State], version: str, values: bytes) -> State:
    """Unpacks a pickled state.

    Raises:
        InstallationError: The state was pickled by another version of Switchrail, whose classes may differ.
    """
    here = _core.fingerprint(_core.Runtime(), [], [], []).inputs["switchrail"]
    if version != here:
        difference = f"switchrail: version is {here!r}, not {version!r}"
        raise InstallationError(
            f"this process's installation differs from the original process's: {difference}",
            differences=(difference,),
        )
    return cls(*pickle.loads(values))


def _backend(
    registration: Registration, implementation: Implementation | None, problems: list[str]
) -> BackendState:
    if registration.to_dict()["origin"]["kind"] != "user" or implementation is None:
        return BackendState(registration, False, None)
    what = f"{registration.op} backend {registration.name!r} ({registration.path})"
    is_imported = isinstance(implementation.target, type)
    config_type = None
    try:
        if is_imported:
            named.path_of(implementation.target)
        else:
            named.check_path(registration.path)
    except named.NotFoundByNameError as error:
        problems.append(f"{what}: {error}")
    try:
        if implementation.config_type is not None:
            config_type = named.path_of(implementation.config_type)
    except named.NotFoundByNameError as error:
        problems.append(f"configuration type {implementation.config_type!r} of {what}: {error}")
    return BackendState(registration, is_imported, config_type)


def _hook(hook: Hook, problems: list[str], *, is_users: bool) -> HookState:
    fn = None
    if is_users:
        try:
            fn = named.path_of(hook.fn)
        except named.NotFoundByNameError as error:
            problems.append(f"{hook!r}: {error}")
        try:
            if hook.path is None:
                raise named.NotFoundByNameError("no dotted path leads to it")
            named.check_path(f"{hook.path.partition('.')[0]}:{hook.path}")
        except named.NotFoundByNameError as error:
            problems.append(f"the target of {hook!r}: {error}")
    return HookState(
        target=hook.target_name,
        kind=hook.kind,
        name=hook.name,
        fn=fn,
        **{name: getattr(hook, name) for name in HOOK_ARGUMENTS},
        is_enabled=chain.is_enabled(hook),
    )


def _platform(runtime: Runtime, problems: list[str]) -> str | None:
    asked = runtime._platforms.asked
    if asked is None:
        return None
    cls = type(runtime.platform)
    try:
        if asked.startswith(f"{cls.__module__}:{cls.__qualname__}:"):
            named.path_of(cls)
    except named.NotFoundByNameError as error:
        problems.append(f"platform {asked}: {error}")
    return asked


def _plan(plan: RoutePlan) -> PlanState:
    request = plan.to_dict()["request"]
    device = request.pop("device")
    del request["packages"]  # a process that remakes the plan uses its own packages
    request |= {"device": device["kind"], "capability": device["capability"]}
    return PlanState(plan.layout, request, tuple(plan.table), plan.fingerprint)
