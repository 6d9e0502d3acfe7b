"""The runtime: registrations, plugins, hooks and platform, and the route plans made from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from switchrail import _core, arguments
from switchrail import config as configs
from switchrail.builtin_backends import register_builtins
from switchrail.errors import (
    ConfigError,
    PlatformError,
    StalePlanError,
    SwitchrailError,
    UnknownBackendError,
    UnknownOpError,
)
from switchrail.functions import Functions
from switchrail.implementation import Implementation
from switchrail.nearest import unknown
from switchrail.platforms import OPERATIONS, Operation, Platform, PlatformChoice
from switchrail.plugins import GROUP, Loader, Plugin
from switchrail.plugins.choosing import Choosing
from switchrail.plugins.environment import seconds_allowed
from switchrail.policy import Policy, read_policy
from switchrail.registration import Registrar, Registry, dtype_name
from switchrail.registration import capability as read_capability
from switchrail.registration import head_size as read_head_size
from switchrail.staging import StagedHooks, Staging, staging_of
from switchrail.times import as_arguments, measurements_for
from switchrail.variables import POLICY, blamed_on

if TYPE_CHECKING:
    import torch

    from switchrail._core import BoundPlan, Decision, Fingerprint, Layout, Registration, RoutePlan
    from switchrail.hooks import Hooks
    from switchrail.ops.backend import AnyBackend

_USER = {"kind": "user"}
_BUILTIN = {"kind": "builtin"}


class Runtime(Registrar):
    """Owns registrations, plugins, hooks and the choice of a platform. Any thread can call all methods.

    A new runtime has the built-in backends. `current_runtime()` returns the process's default runtime; tests
    and services create their own runtimes.

    Attributes:
        hooks: The hooks that this runtime has put on functions and classes of the process.
        skips_policy_errors: Whether `plan` ignores invalid configurations in the policy file, the file that
            `SWITCHRAIL_POLICY` names, instead of raising an error. `switchrail explain` sets it, and prints
            the errors.
    """

    def __init__(self) -> None:
        self._core = _core.Runtime()
        self.skips_policy_errors = False
        self.hooks: Hooks = StagedHooks()
        choosing = Choosing()
        self._functions = Functions((name, one.forward) for name, one in OPERATIONS.items())
        self._loader = Loader(self._core, self.hooks, self._functions, choosing)
        self._platforms = PlatformChoice(self._loader.platforms, self._loader.seconds, choosing)
        with self._open(_BUILTIN) as staging:
            register_builtins(Registry(staging))

    @property
    def default_timeout(self) -> float | None:
        """Default time limit in seconds for the import and the function of a plugin; None means no limit.

        Initially None; the command `switchrail` sets it to 60. The `timeout` of `load` and
        `SWITCHRAIL_LOAD_TIMEOUT` take precedence.

        Raises:
            ArgumentError: The new value is not a number.
            ConfigError: The new value is not above 0.
        """
        return self._loader.default_timeout

    @default_timeout.setter
    def default_timeout(self, seconds: float | None) -> None:
        self._loader.default_timeout = None if seconds is None else seconds_allowed(seconds)

    @property
    def platform(self) -> Platform:
        """The platform that models run on by default; see `PlatformChoice`."""
        return self._platforms.get()

    def use_platform(self, platform: Platform | str | torch.device) -> None:
        """Sets the platform for all later uses. Same argument as `PlatformChoice.find`.

        Raises:
            PlatformError: See `PlatformChoice.find`; or a plugin calls this while it is being loaded.
        """
        staging = staging_of(self.hooks)
        if staging is not None:
            raise PlatformError(
                f"{staging} can't set the platform while the plugin is being loaded; to provide a platform, "
                "declare an entry point in the group switchrail.platforms"
            )
        self._platforms.use(platform)

    def find_platform(self, platform: Platform | str | torch.device | None) -> Platform:
        """Finds a platform, as `PlatformChoice.find` does; None means the attribute `platform`."""
        return self.platform if platform is None else self._platforms.find(platform)

    def forward_of(self, operation: type[Operation], platform: Platform) -> Callable[..., Any] | None:
        """The function for an operation: the platform's own, else the registered one, else None.

        Raises:
            BackendImportError: The path of the registered function doesn't lead to a function.
            PlatformError: See `Serving.forward_of`.
            RegistrationError: The signature of the registered function does not match the operation's.
        """
        own = platform.serving.forward_of(operation)
        if own is not None:
            return own
        return self._functions.find(operation.name, platform.kind, platform.capability)

    def family_of(self, model_type: object) -> Any:
        """The model family that is registered for a model type; None if there is none.

        Raises:
            BackendImportError: The family can't be imported from its path.
        """
        return self._functions.family(model_type)

    def kinds_of(self, config: Mapping[str, Any]) -> Sequence[str] | None:
        """The kind of each layer of a model configuration; None if no registered family provides the kinds.

        Raises:
            BackendImportError: The family's function can't be imported from its path.
        """
        return self._functions.kinds(config)

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """The records of the installed plugins, as of the last `discover` or `load`.

        A platform plugin is `discovered` until the platform is chosen; then the plugin of the chosen platform
        is `loaded`.
        """
        return tuple(map(self._platforms.record_of, self._loader.plugins))

    def discover(self, paths: Iterable[str | os.PathLike[str]] | None = None) -> tuple[Plugin, ...]:
        """Finds the installed plugins; see `Loader.discover`."""
        self._loader.discover(paths)
        return self.plugins

    def load(
        self, plugins: Sequence[str] | None = None, *, strict: bool = False, timeout: float | None = None
    ) -> tuple[Plugin, ...]:
        """Loads the installed plugins; for arguments see `Loader.load`, where `plugins` is called `allow`."""
        self._loader.load(plugins, strict=strict, timeout=timeout, platform=self._platforms.asked)
        return self.plugins

    @contextmanager
    def transaction(self) -> Iterator[Registry]:
        """Commits the block's registrations and hooks at its end. If the block raises an error, drops them.

        In a plugin that is being loaded, the block is part of the plugin's own transaction instead.

        Raises:
            ConflictError: At the end, if another transaction has taken one of the names.
            RegistrationError: At the end, if an operation or a model type already has a registration.
            HookError: At the end, if a hook can't be put on its target.
            OrderError: At the end, if the constraints of the hooks on one target form a cycle.
        """
        with self._open() as staging:
            yield Registry(staging)

    @contextmanager
    def _open(self, origin: Mapping[str, str] = _USER, *, apart: bool = False) -> Iterator[Staging]:
        """The transaction of the plugin that this thread loads; a new one if there is none, or if `apart`."""
        staging = None if apart else staging_of(self.hooks)
        if staging is not None:
            yield staging
            return
        staging = Staging(self._core, self.hooks, self._functions, origin)
        try:
            yield staging
            staging.commit()
        finally:
            staging.close()

    def configure(self, op: str, name: str, /, **values: Any) -> None:
        """Sets values of a backend's configuration, which override the defaults of its registration.

        The values apply to later plans. A call replaces all values of earlier calls, also those of keys that
        it leaves out. A later registration that overrides the backend starts with its own defaults, without
        these values.

        Raises:
            UnknownBackendError: There is no such backend.
            ConfigError: The backend has no configuration, or the values are invalid; the error lists all
                problems.
            RegistrationError: A plugin configures a registration that it didn't make itself.
        """
        self._configure(op, name, values)

    def _configure(self, op: str, name: str, values: Mapping[str, Any], *, apart: bool = False) -> None:
        registration = self.backend(op, name)
        where = f"configuration of {op} backend {name!r}"
        implementation: Implementation = self._core.object(registration.id)
        if implementation.config_type is None:
            raise ConfigError(f"{where}: the backend takes no configuration", found=values, valid=())
        given = configs.to_json_values(values, where)
        configs.validate(implementation.config_type, {**registration.default_config, **given}, where)
        with self._open(apart=apart) as staging:
            staging.registrations.configure(op, name, given)

    def apply_policy(self) -> tuple[SwitchrailError, ...]:
        """Configures backends with the values of the policy file, unless the program configured them.

        Returns:
            The errors: unknown backends and invalid values. `plan` raises the first of them.

        Raises:
            ConfigError: The file can't be read or is invalid.
        """
        return self._apply(read_policy())

    def _apply(self, policy: Policy) -> tuple[SwitchrailError, ...]:
        errors: list[SwitchrailError] = []
        for key, values in policy.config.items():
            try:
                self._configure_by(key, values)
            except (ConfigError, UnknownBackendError, UnknownOpError) as error:
                errors.append(error)
        return tuple(errors)

    def _configure_by(self, key: tuple[str, str], values: Mapping[str, Any]) -> None:
        """Configures a backend with the values of the policy file, unless the program configured it."""
        with blamed_on(POLICY, ConfigError, UnknownBackendError, UnknownOpError):
            try:
                if not self.backend(*key).configuration:
                    # A transaction of its own: a plugin being loaded may not configure others' backends.
                    self._configure(*key, values, apart=True)
            except (UnknownBackendError, UnknownOpError) as error:
                error.extend(f"named by the file's table [config.{'.'.join(key)}]")
                raise

    def backends(self, op: str | None = None) -> tuple[Registration, ...]:
        """The backends, of one op or of all, that are active in at least one phase; sorted by op and name."""
        return tuple(self._core.backends(op))

    def backend(self, op: str, name: str, phase: str | None = None) -> Registration:
        """The registration of a backend by name.

        Args:
            op: The op.
            name: The name.
            phase: Selects the registration that is active in this phase. If it is None, or if no registration
                of the name serves the phase, the last registration is returned.

        Raises:
            UnknownBackendError: There is no such backend; the error has the valid and the nearest names.
        """
        active = None if phase is None else self._core.active(op, name, phase)
        if active is not None:
            return active
        stack = self._core.stack(op, name)
        if stack:
            return stack[-1]
        valid = tuple(dict.fromkeys(backend.name for backend in self.backends(op)))
        problem = f"there is no {op} backend {name!r}"
        with self._hint_at_load():
            raise unknown(UnknownBackendError, problem, name, valid, op=op, found=name)

    @contextmanager
    def _hint_at_load(self) -> Iterator[None]:
        """Completes errors about missing backends with the installed plugins that were not loaded."""
        try:
            yield
        except (UnknownBackendError, StalePlanError) as error:
            hint = "`Runtime.load()` loads installed plugins"
            # An error of a backend's constructor may have the hint already.
            if hint not in error.message and (waiting := self._waiting_plugins()):
                error.extend(f"not loaded: {', '.join(waiting)}; {hint}")
            raise

    def _waiting_plugins(self) -> list[str]:
        return [one.name for one in self._loader.plugins if (one.group, one.state) == (GROUP, "discovered")]

    def is_overridden(self, op: str, name: str, phase: str | None = None) -> bool:
        """Whether a later registration overrides a registration of this name.

        Args:
            op: The op.
            name: The name, which need not be registered.
            phase: The phase to look at; None means any phase.

        Raises:
            UnknownOpError: The op is unknown.
            UnknownPhaseError: The phase is unknown.
        """
        return self._core.is_overridden(op, name, phase)

    def stack(self, op: str, name: str) -> tuple[Registration, ...]:
        """The registrations of a name, in order. In each phase, the last that serves the phase is active."""
        return tuple(self._core.stack(op, name))

    def build(self, op: str, name: str, phase: str | None = None) -> AnyBackend:
        """Constructs a backend with its current configuration. Same arguments as `backend`.

        If the program has not configured the backend, the policy file's values for it are applied first.

        Raises:
            UnknownBackendError: There is no such backend.
            BackendImportError: Its path doesn't lead to a backend.
            ConfigError: Its configuration is invalid.
        """
        registration = self.backend(op, name, phase)
        key = registration.op, registration.name
        values = read_policy().config.get(key)
        if values is not None:
            self._configure_by(key, values)
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
        """Decides which backend would serve a query, and why the others would not. Imports no backend.

        An optional property that is None rejects no backend, with one exception: an unknown `capability`
        rejects backends that need a certain one. For `preferences` and `measurements`, see below.

        Args:
            op: The op.
            phase: The phase.
            device: A platform, or a kind of device such as `cuda`.
            dtype: The dtype of activations and key-value caches.
            capability: The compute capability of the device, if `device` is only a kind.
            state_dtype: The dtype of the recurrent state.
            head_size: One number, or (size of q and k, size of v).
            page_size: Page size in tokens.
            state_layout: Axis order of the recurrent state.
            features: Features that the backend must have; not every backend has them.
            heads: Numbers of q heads and of v heads. The measured times with the nearest numbers are used.
            no_decay: Whether the states never decay. Then times measured without decay are used, if there
                are any.
            preferences: Backend names by `OP`, `OP.PHASE`, `linear` or `linear.PHASE`; `linear` stands for
                all ops of linear attention. With several names, separated by commas, the first that fits is
                chosen; if none fits, any other backend may be chosen. `auto` stands for all other backends,
                and must come last. `!NAME` denies a backend, even if another key chooses it. For ops and
                phases without a choice, the policy file (`SWITCHRAIL_POLICY`) may choose. Its denials always
                apply.
            measurements: Times of calls. Each measurement has `op`, `phase`, `dtype`, `head_size`, `heads`,
                `no_decay` and `samples`; each sample has `rows`, `length`, `nanoseconds` (by backend) and
                optionally `spread` (by backend), as in `switchrail.times.Machine`. A time whose spread
                exceeds 0.2 is multiplied by 1 + spread. None means the times that `switchrail tune` measured
                on the platform, if `device` is a platform.

        Raises:
            TimesError: The measured times can't be read.
            BackendUnfitError: A preference names only one backend, and this doesn't fit.
            NoBackendError: No backend fits; the error has the reasons for rejecting each candidate.
            UnknownBackendError: A preference names a backend that none of the ops of its key has.
            PreferenceError: A key has an unknown op or phase; or `auto` is denied, or not the last name.
            UnknownOpError, UnknownPhaseError, UnknownDtypeError, UnknownDeviceError: The argument has an
                unknown name.
            ArgumentError: An argument has a wrong type.
        """
        query = {
            "op": arguments.text("op", op),
            "phase": arguments.text("phase", phase),
            "device": _device(device, capability),
            "dtype": dtype_name("dtype", dtype),
            "state_dtype": None if state_dtype is None else dtype_name("state_dtype", state_dtype),
            "head_size": None if head_size is None else read_head_size("head_size", head_size, 1),
            "page_size": _page_size(page_size),
            "state_layout": arguments.optional_text("state_layout", state_layout),
            "features": arguments.texts("features", features),
            "preferences": read_policy().completed(arguments.texts_by_name("preferences", preferences)),
            "installed": self._loader.installed(),
            "heads": None if heads is None else arguments.pair("heads", heads, 1),
            "no_decay": arguments.flag("no_decay", no_decay),
            "measurements": self._measurements(device, measurements),
        }
        with self._hint_at_load():
            return self._core.resolve(query)

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

        If times were measured, different backends can serve batches of different sizes. `BoundPlan.at`
        returns the backends for one batch. All backends of one op in a plan use the same state layout, state
        dtype and page size.

        For backends that the program has not configured, the policy file's values are applied first.

        The plan is data. It can be pickled, and includes the registrations that it was made from, so later
        changes do not affect it.

        Args:
            layout: The model's layers.
            device: As for `resolve`.
            dtype: As for `resolve`.
            capability: As for `resolve`.
            state_dtype: The dtype of the recurrent states; restricts the linear ops only.
            page_size: Page size in tokens; restricts the paged ops only.
            state_layouts: Axis order of the recurrent state, by op.
            features: Features that the backends must have, by op; not every backend has them.
            preferences: As for `resolve`.
            phases: The phases to plan.
            no_decay: The ops whose states never decay; see `resolve`.
            measurements: As for `resolve`.

        Raises:
            SwitchrailError: See `resolve`; messages and fields also name the layers.
        """
        policy = read_policy()
        for error in self._apply(policy):
            if not self.skips_policy_errors:
                raise error
        request = {
            "device": _device(device, capability),
            "dtype": dtype_name("dtype", dtype),
            "state_dtype": None if state_dtype is None else dtype_name("state_dtype", state_dtype),
            "page_size": _page_size(page_size),
            "phases": arguments.texts("phases", phases),
            "preferences": policy.completed(arguments.texts_by_name("preferences", preferences)),
            "state_layouts": arguments.texts_by_name("state_layouts", state_layouts),
            "features": {
                op: arguments.texts(f"features[{op!r}]", names)
                for op, names in arguments.by_name("features", features).items()
            },
            "installed": self._loader.installed(),
            "no_decay": arguments.texts("no_decay", no_decay),
            "measurements": self._measurements(device, measurements),
        }
        layout = arguments.instance("layout", layout, _core.Layout)
        with self._hint_at_load():
            return _core.RoutePlan(self._core, layout, request)

    def bind(self, plan: RoutePlan) -> BoundPlan:
        """Imports and constructs each backend of a plan once, with the plan's configurations.

        The plan may come from another process: a backend matches if its origin (the program, Switchrail, or a
        plugin and its version) and all data of its registration are equal, except configured values.
        A bound plan keeps its instances regardless of later changes. Native backends, which Rust calls, have
        no instance.

        Raises:
            StalePlanError: A backend of the plan is not registered here, or its registration differs.
            BackendImportError: A backend's path doesn't lead to a backend.
            ConfigError: A backend's configuration is invalid.
        """
        plan = arguments.instance("plan", plan, _core.RoutePlan)
        with self._hint_at_load():
            return _core.BoundPlan(self._core, plan, _build)

    def _measurements(
        self, device: Platform | str, given: Iterable[Mapping[str, Any]] | None
    ) -> list[dict[str, Any]]:
        if given is not None:
            return as_arguments(given)
        if isinstance(device, Platform):
            return measurements_for(device, self._loader.installed().packages)
        return []

    def fingerprint(self, *plans: RoutePlan) -> str:
        """A digest of loaded plugins, hooks, backends, configurations and the given plans.

        Two digests are equal if and only if all of these are equal. Process, machine, and the order of
        installation and registration don't matter.
        """
        return self._fingerprint(*plans).digest

    def _fingerprint(self, *plans: RoutePlan) -> Fingerprint:
        checked = [arguments.instance("plan", plan, _core.RoutePlan) for plan in plans]
        return _core.fingerprint(self._core, self._loader.plugins, self.hooks.chains(), checked)


def _build(registration: Registration, implementation: Implementation) -> object:
    return implementation.build(registration)


def _page_size(page_size: int | None) -> int | None:
    return None if page_size is None else arguments.whole("page_size", page_size, 1)


def _device(device: Platform | str, capability: tuple[int, int] | None) -> tuple[str, tuple[int, int] | None]:
    if isinstance(device, Platform):
        return device.kind, device.capability
    if not isinstance(device, str):
        raise arguments.refused("device", device, "a platform, or a kind of device as a string")
    return arguments.text("device", device), read_capability("capability", capability)
