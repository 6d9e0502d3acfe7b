"""The runtime: what is registered, loaded and hooked, the platform, and the route plans made from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from switchrail import _core, arguments
from switchrail import config as configs
from switchrail.builtin_backends import register_builtins
from switchrail.errors import ConfigError, PlatformError, UnknownBackendError
from switchrail.functions import Functions
from switchrail.implementation import Implementation
from switchrail.nearest import nearest
from switchrail.platforms import OPERATIONS, Operation, Platform, PlatformChoice
from switchrail.plugins import Loader, Plugin
from switchrail.plugins.choosing import Choosing
from switchrail.plugins.environment import seconds_allowed
from switchrail.registration import Registrar, Registry, dtype_name
from switchrail.registration import capability as read_capability
from switchrail.registration import head_size as read_head_size
from switchrail.staging import StagedHooks, Staging, staging_of
from switchrail.times import as_arguments, measurements_for

if TYPE_CHECKING:
    import torch

    from switchrail._core import BoundPlan, Decision, Fingerprint, Layout, Registration, RoutePlan
    from switchrail.hooks import Hooks
    from switchrail.ops.backend import AnyBackend

_USER = {"kind": "user"}
_BUILTIN = {"kind": "builtin"}


class Runtime(Registrar):
    """Owns what is registered, loaded and hooked. Every method can be called from any thread.

    A new one has the built-in backends. `current_runtime()` is the default one; tests and services make their
    own.

    Attributes:
        hooks: What this runtime has put on functions of the process.
    """

    def __init__(self) -> None:
        self._core = _core.Runtime()
        self.hooks: Hooks = StagedHooks()
        choosing = Choosing()
        self._functions = Functions((name, one.forward) for name, one in OPERATIONS.items())
        self._loader = Loader(self._core, self.hooks, self._functions, choosing)
        self._platforms = PlatformChoice(self._loader.platforms, self._loader.seconds, choosing)
        with self._open(_BUILTIN) as staging:
            register_builtins(Registry(staging))

    @property
    def default_timeout(self) -> float | None:
        """Seconds that a plugin, or a platform's function and import, may take where nobody says otherwise.

        None, as it is at first: as long as it takes. The `timeout` of `load` comes before it, and so does
        `SWITCHRAIL_LOAD_TIMEOUT`. The command sets it to 60.

        Raises:
            ArgumentError: It is set to no number.
            ConfigError: It is set to a number that is not above 0.
        """
        return self._loader.default_timeout

    @default_timeout.setter
    def default_timeout(self, seconds: float | None) -> None:
        self._loader.default_timeout = None if seconds is None else seconds_allowed(seconds)

    @property
    def platform(self) -> Platform:
        """The platform that models run on unless they name another; see `PlatformChoice`."""
        return self._platforms.get()

    def use_platform(self, platform: Platform | str | torch.device) -> None:
        """Names the platform, for all who ask from now on; takes what `find_platform` takes.

        Raises:
            PlatformError: As `find_platform`; or a plugin that is being loaded calls this.
        """
        staging = staging_of(self.hooks)
        if staging is not None:
            raise PlatformError(
                f"{staging} can't name the platform while it is loaded; valid: an entry point in the group "
                "switchrail.platforms, and to leave the choice to the program"
            )
        self._platforms.use(platform)

    def find_platform(self, platform: Platform | str | torch.device) -> Platform:
        """A platform by name, device or class path; see `PlatformChoice.find`."""
        return self._platforms.find(platform)

    def forward_of(self, operation: type[Operation], platform: Platform) -> Callable[..., Any] | None:
        """The function that serves an operation: the platform's, else a registered one; None: the native one.

        Raises:
            BackendImportError: The path of the registered one doesn't lead to a function.
            PlatformError: As `Serving.forward_of`.
            RegistrationError: The registered one can't be called as the operation's functions are.
        """
        own = platform.serving.forward_of(operation)
        if own is not None:
            return own
        return self._functions.find(operation.name, platform.kind, platform.capability)

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """What is known of each installed plugin, as of the last `discover` or `load`.

        A platform plugin is `discovered` until the platform is chosen; then the one in use is `loaded`.
        """
        return tuple(map(self._platforms.record_of, self._loader.plugins))

    def discover(self, paths: Iterable[str | os.PathLike[str]] | None = None) -> tuple[Plugin, ...]:
        """Looks for installed plugins; see `Loader.discover`."""
        self._loader.discover(paths)
        return self.plugins

    def load(
        self, plugins: Sequence[str] | None = None, *, strict: bool = False, timeout: float | None = None
    ) -> tuple[Plugin, ...]:
        """Loads the installed plugins, or those named; see `Loader.load`."""
        self._loader.load(plugins, strict=strict, timeout=timeout, platform=self._platforms.asked)
        return self.plugins

    @contextmanager
    def transaction(self) -> Iterator[Registry]:
        """Commits what is registered through it at the end of the block; nothing where the block raises.

        In a plugin that is being loaded it is a part of the plugin's own transaction.

        Raises:
            ConflictError: At the end: another transaction has taken one of the names since.
            HookError: At the end: a hook can't be put in force.
            OrderError: At the end: the constraints of the hooks on one target form a cycle.
        """
        with self._open() as staging:
            yield Registry(staging)

    @contextmanager
    def _open(self, origin: Mapping[str, str] = _USER) -> Iterator[Staging]:
        staging = staging_of(self.hooks)
        if staging is not None:  # of the plugin whose code this is
            yield staging
            return
        staging = Staging(self._core, self.hooks, self._functions, origin)
        try:
            yield staging
            staging.commit()
        finally:
            staging.close()

    def configure(self, op: str, name: str, /, **values: Any) -> None:
        """Sets values of a backend's configuration, over the defaults of its registration.

        They replace the values set before, count in later plans, and belong to the registration: one that
        overrides it starts with its own defaults.

        Raises:
            UnknownBackendError: There is no such backend.
            ConfigError: It takes no configuration, or not these values; the error lists every problem.
            RegistrationError: A plugin configures what somebody else registered.
        """
        registration = self.backend(op, name)
        where = f"configuration of {op} backend {name!r}"
        implementation: Implementation = self._core.object(registration.id)
        if implementation.config_type is None:
            raise ConfigError(f"{where}: it takes none", found=values, valid=())
        given = configs.to_json_values(values, where)
        configs.validate(implementation.config_type, {**registration.default_config, **given}, where)
        with self._open() as staging:
            staging.registrations.configure(op, name, given)

    def backends(self, op: str | None = None) -> tuple[Registration, ...]:
        """The backends of an op, or of all, that are active in some phase: by op and name."""
        return tuple(self._core.backends(op))

    def backend(self, op: str, name: str, phase: str | None = None) -> Registration:
        """The backend of a name.

        Args:
            op: The op.
            name: The name.
            phase: Which of several registrations is meant: the one that is active in this phase, or the
                uppermost where that is None, or no one serves it.

        Raises:
            UnknownBackendError: There is none; the error has the valid and the nearest names.
        """
        active = None if phase is None else self._core.active(op, name, phase)
        if active is not None:
            return active
        stack = self._core.stack(op, name)
        if stack:
            return stack[-1]
        valid = tuple(dict.fromkeys(backend.name for backend in self.backends(op)))
        names, hint = nearest(name, valid)
        raise UnknownBackendError(
            f"there is no {op} backend {name!r}{hint}; valid: {', '.join(valid) or 'none is registered'}",
            op=op,
            found=name,
            valid=valid,
            nearest=names,
        )

    def is_overridden(self, op: str, name: str, phase: str | None = None) -> bool:
        """Whether another registration of a name serves in place of one below it.

        Args:
            op: The op.
            name: The name; nothing need have it.
            phase: In this phase; None: in any.

        Raises:
            UnknownOpError: There is no such op, or, as an error of its own, no such phase.
        """
        return self._core.is_overridden(op, name, phase)

    def stack(self, op: str, name: str) -> tuple[Registration, ...]:
        """The registrations of a name: each overrides those before it, in the phases that both serve."""
        return tuple(self._core.stack(op, name))

    def build(self, op: str, name: str, phase: str | None = None) -> AnyBackend:
        """Constructs a backend with the configuration in effect, as a plan does; it is named as to `backend`.

        Raises:
            UnknownBackendError: There is none.
            BackendImportError: Its path doesn't lead to a backend.
            ConfigError: Its configuration is not valid.
        """
        registration = self.backend(op, name, phase)
        implementation: Implementation = self._core.object(registration.id)
        return implementation.build(registration)

    @arguments.names_checked
    def resolve(
        self,
        op: str,
        phase: str,
        *,
        device: Platform | str,
        dtype: str | torch.dtype,
        capability: tuple[int, int] | None = None,
        state_dtype: str | torch.dtype | None = None,
        head_size: int | tuple[int, int] | None = None,
        page_size: int | None = None,
        state_layout: str | None = None,
        features: Iterable[str] = (),
        heads: tuple[int, int] | None = None,
        no_decay: bool = False,
        preferences: Mapping[str, str] | None = None,
        measurements: Iterable[Mapping[str, Any]] | None = None,
    ) -> Decision:
        """Which backend would serve a query, and why each other one would not. Imports no backend.

        Args:
            op: What is computed.
            phase: When.
            device: Where: a platform, or a kind of device such as `cuda`.
            dtype: Of activations and key-value caches.
            capability: Compute capability of the device, where `device` is only a kind.
            state_dtype: Of the recurrent state. This and the following restrict nothing where they are None.
            head_size: One number, or (of q and k, of v).
            page_size: Tokens a page.
            state_layout: Axis order of the recurrent state.
            features: What the backend must be able to do besides.
            heads: How many, of q and of v: times measured with the nearest numbers count.
            no_decay: Whether the gates never decay: times measured so count, where there are any.
            preferences: Backend names by `OP`, `OP.PHASE`, `linear` or `linear.PHASE`.
            measurements: What calls take, each with `op`, `phase`, `dtype`, `head_size`, `heads`, `no_decay`
                and `samples`, each of these with `rows`, `length` and `nanoseconds`, a mapping by backend
                (and perhaps `spread`, likewise: a time counts as that much longer where it is above 0.2);
                None: what `switchrail tune` found on the platform, if `device` is one.

        Raises:
            TimesError: What it found can't be read.
            BackendUnfitError: The preferred backend can't do it; no other one is taken instead.
            NoBackendError: None can; the error has every candidate's reasons.
            UnknownBackendError: A preference names no backend of its ops.
            PreferenceError: A preference's key means nothing; other unknown names have errors of their own.
            ArgumentError: An argument has another type.
        """
        return self._core.resolve(
            {
                "op": arguments.text("op", op),
                "phase": arguments.text("phase", phase),
                "device": _device(device, capability),
                "dtype": dtype_name("dtype", dtype),
                "state_dtype": None if state_dtype is None else dtype_name("state_dtype", state_dtype),
                "head_size": None if head_size is None else read_head_size("head_size", head_size, 1),
                "page_size": _page_size(page_size),
                "state_layout": arguments.optional_text("state_layout", state_layout),
                "features": arguments.texts("features", features),
                "preferences": arguments.texts_by_name("preferences", preferences),
                "installed": self._loader.installed(),
                "heads": None if heads is None else arguments.pair("heads", heads, 1),
                "no_decay": arguments.flag("no_decay", no_decay),
                "measurements": self._measurements(device, measurements),
            }
        )

    @arguments.names_checked
    def plan(
        self,
        layout: Layout,
        *,
        device: Platform | str,
        dtype: str | torch.dtype,
        capability: tuple[int, int] | None = None,
        state_dtype: str | torch.dtype | None = "float32",
        page_size: int | None = None,
        state_layouts: Mapping[str, str] | None = None,
        features: Mapping[str, Iterable[str]] | None = None,
        preferences: Mapping[str, str] | None = None,
        phases: Iterable[str] = ("prefill", "decode"),
        no_decay: Iterable[str] = (),
        measurements: Iterable[Mapping[str, Any]] | None = None,
    ) -> RoutePlan:
        """Decides which backend serves each layer. Imports no backend; `bind` does.

        Where measurements say so, batches of different sizes are served by different backends: `BoundPlan.at`
        gives those of one batch. All that a plan has of one op take the state, or the cache, in one form.

        The plan is data: it pickles, and keeps what it was made from. Later registrations and configurations
        are for later plans.

        Args:
            layout: What each layer of the model is.
            device: As in `resolve`, and so are `dtype` and `capability`.
            dtype: Of activations and key-value caches.
            capability: Compute capability of the device.
            state_dtype: Of the recurrent states; asked of the linear ops only.
            page_size: Tokens a page; asked of the paged ops only.
            state_layouts: Axis order of the recurrent state, by op.
            features: What backends must be able to do besides, by op.
            preferences: As in `resolve`.
            phases: What is planned.
            no_decay: The ops whose gates never decay; as in `resolve`.
            measurements: As in `resolve`.

        Raises:
            SwitchrailError: As in `resolve`; messages and fields name the layers too.
        """
        request = {
            "device": _device(device, capability),
            "dtype": dtype_name("dtype", dtype),
            "state_dtype": None if state_dtype is None else dtype_name("state_dtype", state_dtype),
            "page_size": _page_size(page_size),
            "phases": arguments.texts("phases", phases),
            "preferences": arguments.texts_by_name("preferences", preferences),
            "state_layouts": arguments.texts_by_name("state_layouts", state_layouts),
            "features": {
                op: arguments.texts(f"features[{op!r}]", names)
                for op, names in arguments.by_name("features", features).items()
            },
            "installed": self._loader.installed(),
            "no_decay": arguments.texts("no_decay", no_decay),
            "measurements": self._measurements(device, measurements),
        }
        return _core.RoutePlan(self._core, arguments.instance("layout", layout, _core.Layout), request)

    def bind(self, plan: RoutePlan) -> BoundPlan:
        """Imports the backends of a plan and constructs them, each once, with the plan's configurations.

        The plan may come from another process: its backends are found by op, name, origin and capabilities.
        A bound plan keeps its instances, whatever is registered or withdrawn later. Native backends, which
        Rust calls, have no instance.

        Raises:
            StalePlanError: A backend of the plan is not registered here, or not as it was.
            BackendImportError: The path of a backend doesn't lead to one.
            ConfigError: The configuration of a backend is not valid.
        """
        return _core.BoundPlan(self._core, arguments.instance("plan", plan, _core.RoutePlan), _build)

    def _measurements(
        self, device: Platform | str, given: Iterable[Mapping[str, Any]] | None
    ) -> list[dict[str, Any]]:
        if given is not None:
            return as_arguments(given)
        return (
            measurements_for(device, self._loader.installed().packages)
            if isinstance(device, Platform)
            else []
        )

    def fingerprint(self, *plans: RoutePlan) -> str:
        """A digest of loaded plugins, hooks, backends, configurations and the given plans.

        It is equal exactly where what decides is equal: in any process, on any machine, in any order of
        installation and registration. A plugin that is not loaded, or failed to load, does not count.
        """
        return self._fingerprint(*plans).digest

    def _fingerprint(self, *plans: RoutePlan) -> Fingerprint:
        plugins = list(self._loader.plugins)
        return _core.fingerprint(self._core, plugins, self.hooks.chains(), _checked(plans))


def _build(registration: Registration, implementation: Implementation) -> object:
    return implementation.build(registration)


def _checked(plans: Iterable[RoutePlan]) -> list[RoutePlan]:
    return [arguments.instance("plan", plan, _core.RoutePlan) for plan in plans]


def _page_size(page_size: int | None) -> int | None:
    return None if page_size is None else arguments.whole("page_size", page_size, 1)


def _device(device: Platform | str, capability: tuple[int, int] | None) -> tuple[str, tuple[int, int] | None]:
    if isinstance(device, Platform):
        return device.kind, device.capability
    if not isinstance(device, str):
        raise arguments.refused("device", device, "a platform, or a kind of device as a text")
    return arguments.text("device", device), read_capability("capability", capability)
