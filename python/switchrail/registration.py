"""Registration of backends, functions for operations, families of models, and hooks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, overload

from switchrail import _core, arguments
from switchrail import config as configs
from switchrail.functions import Function, ModelFamily
from switchrail.hooks.hook import HOOK_ORDER, Hook, HookOrder, Kind
from switchrail.hooks.registry import decorator
from switchrail.implementation import Implementation, check_class

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from switchrail.staging import Staging

C = TypeVar("C", bound=type[Any])
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DeviceSupport:
    """A device family, optionally restricted to a range of compute capabilities.

    Attributes:
        kind: `cuda`, `cpu` and so on, or `oot:NAME` for a kind that Switchrail does not know.
        min_capability: The lowest supported compute capability as (major, minor); None means no limit.
        max_capability: The highest supported compute capability, inclusive; None means no limit.
    """

    kind: str
    min_capability: tuple[int, int] | None = None
    max_capability: tuple[int, int] | None = None


def dtype_name(argument: str, dtype: str | torch.dtype) -> str:
    """A dtype's name without its module, such as `bfloat16`.

    Raises:
        ArgumentError: The argument is neither a string nor a dtype of torch.
    """
    if isinstance(dtype, str) or type(dtype).__module__ == "torch":
        return arguments.text(argument, str(dtype)).removeprefix("torch.")
    raise arguments.refused(argument, dtype, "a dtype of torch, or its name")


def head_size(argument: str, found: object, least: int = 0) -> int | tuple[int, int]:
    """Checks a head size: one integer, or (size of q and k, size of v).

    Raises:
        ArgumentError: The argument is neither.
    """
    if isinstance(found, (tuple, list)):
        return arguments.pair(argument, found, least, "an integer, or a pair of integers (of q and k, of v)")
    return arguments.whole(argument, found, least)


def capability(argument: str, found: object) -> tuple[int, int] | None:
    """Checks a compute capability, which may be None.

    Raises:
        ArgumentError: The argument is not a compute capability.
    """
    return None if found is None else arguments.pair(argument, found, meaning="None, or (major, minor)")


class BackendOptions(TypedDict, total=False):
    """The options of a registration; `Registrar.register` explains them."""

    phases: Iterable[str]
    devices: Iterable[str | DeviceSupport]
    dtypes: Iterable[str | torch.dtype] | None
    state_dtypes: Iterable[str | torch.dtype] | None
    head_sizes: Iterable[int | tuple[int, int]] | None
    page_sizes: Iterable[int] | None
    state_layouts: Iterable[str] | None
    features: Iterable[str]
    packages: Iterable[str]
    priority: int
    config: Any
    override: bool


_DEFAULTS: Final[BackendOptions] = {
    "phases": ("prefill", "decode"),
    "devices": ("cpu",),
    "dtypes": None,
    "state_dtypes": None,
    "head_sizes": None,
    "page_sizes": None,
    "state_layouts": None,
    "features": (),
    "packages": (),
    "priority": 0,
    "config": None,
    "override": False,
}


class Registrar(ABC):
    """Registers backends, functions for operations, families of models, and hooks.

    Base of `Runtime` and of `Registry`, an open transaction.
    """

    @abstractmethod
    def _open(self) -> AbstractContextManager[Staging]:
        """Opens a transaction for one change."""

    @overload
    def register(
        self, name: str, target: None = None, *, op: str, **options: Unpack[BackendOptions]
    ) -> Callable[[C], C]: ...

    @overload
    def register(
        self, name: str, target: type[Any] | str, *, op: str, **options: Unpack[BackendOptions]
    ) -> None: ...

    @arguments.names_checked
    @arguments.lists_options(BackendOptions, _DEFAULTS)
    def register(
        self, name: str, target: type[Any] | str | None = None, *, op: str, **options: Unpack[BackendOptions]
    ) -> Callable[[C], C] | None:
        """Registers a backend under a name, unique for its op. Without `target`, returns a class decorator.

        An option that is None restricts nothing.

        Args:
            name: The backend's name in preferences and on the command line.
            target: The class, or its path `module:Class`, which is imported when the backend is constructed.
            op: The op that it computes.
            phases: The phases that it serves.
            devices: The devices that it runs on.
            dtypes: The dtypes of activations and key-value caches that it supports.
            state_dtypes: The dtypes of the recurrent state that it supports.
            head_sizes: The head sizes that it supports, each one number or (size of q and k, size of v).
            page_sizes: The numbers of tokens per page that it supports.
            state_layouts: The axis orders of the recurrent state that it supports: `VK`, `KV`, or `oot:NAME`.
            features: Its optional features and optional steps (`switchrail.adapters.STEPS`). A feature that
                Switchrail does not know is written `oot:NAME`.
            packages: Distributions that it requires, with version specifiers as for pip.
            priority: Without preferences and measured times, the fitting backend of the highest priority is
                chosen.
            config: The type of its configuration: a dataclass or pydantic model with a default for each
                field. An instance may be given instead; then its values are the defaults.
            override: Whether it may take the name of another backend. Under this name, it then serves its own
                phases, and the other backend serves the remaining ones. `clear` undoes this.

        Raises:
            NameTakenError: The name is taken and `override` is False.
            BackendImportError: The class is not a backend for the op and the phases.
            ConfigError: `config` is neither a dataclass nor a pydantic model, or its defaults are invalid.
            ArgumentError: An argument has a wrong type or an unknown name.
            RegistrationError: An argument's value is invalid.
            UnknownOpError, UnknownPhaseError, UnknownDtypeError, UnknownDeviceError: The argument has an
                unknown name.
            TransactionClosedError: The transaction has ended.
        """
        name = arguments.text("name", name)
        op = _core.parse_op(arguments.text("op", op))
        given: BackendOptions = {**_DEFAULTS, **options}
        override = arguments.flag("override", given["override"])
        where = f"configuration of {op} backend {name!r}"
        config_type, defaults = configs.read_defaults(given["config"], where)
        phases = arguments.texts("phases", given["phases"])
        features = arguments.texts("features", given["features"])
        spec = {
            "name": name,
            "op": op,
            "phases": phases,
            "devices": _each("devices", given["devices"], _support),
            "dtypes": _each("dtypes", given["dtypes"], dtype_name, optional=True),
            "state_dtypes": _each("state_dtypes", given["state_dtypes"], dtype_name, optional=True),
            "head_sizes": _each("head_sizes", given["head_sizes"], head_size, optional=True),
            "page_sizes": _each("page_sizes", given["page_sizes"], arguments.whole, optional=True),
            "state_layouts": arguments.texts("state_layouts", given["state_layouts"], optional=True),
            "features": features,
            "packages": arguments.texts("packages", given["packages"]),
            "priority": arguments.whole("priority", given["priority"], -(2**31), 2**31 - 1),
            "config": defaults,
        }

        def add(target: type[Any] | str) -> None:
            if isinstance(target, type):
                path = f"{target.__module__}:{target.__qualname__}"
                check_class(target, name, op, path, phases, features)
            elif isinstance(target, str):
                path = arguments.text("target", target)
            else:
                raise arguments.refused("target", target, "a class, or its path as 'module:Class'")
            with self._open() as staging:
                staging.registrations.add(
                    {**spec, "path": path}, Implementation(target, config_type), override
                )

        def decorate(cls: C) -> C:
            add(cls)
            return cls

        if target is None:
            return decorate
        add(target)
        return None

    def clear(self, op: str, name: str, *, phase: str | None = None) -> None:
        """Restores an overridden built-in backend, or unregisters a name. A second call changes nothing.

        Args:
            op: The op.
            name: The name.
            phase: Unregister only backends that serve this phase and no other; None means all backends of the
                name except the built-in one.

        Raises:
            RegistrationError: A plugin tries to clear a name that only other plugins or the user have
                registered. If the plugin has registered it too, only the plugin's registration is cleared.
            TransactionClosedError: The transaction has ended.
        """
        with self._open() as staging:
            staging.registrations.clear(op, name, phase)

    def operation(
        self,
        name: str,
        target: Callable[..., Any] | str,
        *,
        devices: Iterable[str | DeviceSupport] = ("cpu",),
    ) -> None:
        """Registers a function for an operation, for engines created from now on in this process.

        If the platform itself has a function for the operation, that function takes precedence.

        Args:
            name: A name in `switchrail.platforms.OPERATIONS`. The operation's class documents the arguments.
            target: The function, or its path `module:function`, which is imported when an engine is created.
            devices: The supported devices.

        Raises:
            RegistrationError: There is no such operation, or the function's signature does not match. At the
                commit: the operation already has a function for one of the kinds of device.
            ArgumentError: An argument has a wrong type.
            TransactionClosedError: The transaction has ended.
        """
        if not (isinstance(target, str) or callable(target)):
            raise arguments.refused("target", target, "a function, or its path as 'module:function'")
        supported = tuple(_each("devices", devices, _support))
        with self._open() as staging:
            staging.bring(Function(arguments.text("name", name), target, supported, str(staging)))

    def family(
        self,
        model_type: str,
        target: object,
        *,
        kinds: Callable[[Mapping[str, Any]], Sequence[str]] | str | None = None,
    ) -> None:
        """Registers a family of models, for engines created from now on in this process.

        A registered family takes precedence over a built-in one.

        Args:
            model_type: The `model_type` in the configurations of the family's models.
            target: A `switchrail.engine.models.families.Family`, or its path `module:name`, which is imported
                when an engine is created.
            kinds: A function from a configuration to the kind of each layer, such as "gated_delta"; or the
                path of such a function. None if the core knows the model type.

        Raises:
            RegistrationError: At the commit: the model type already has a registered family.
            ArgumentError: An argument has a wrong type.
            TransactionClosedError: The transaction has ended.
        """
        if not (kinds is None or isinstance(kinds, str) or callable(kinds)):
            raise arguments.refused("kinds", kinds, "a function, its path as 'module:function', or None")
        with self._open() as staging:
            staging.bring(ModelFamily(arguments.text("model_type", model_type), target, kinds, str(staging)))

    @overload
    def hook(
        self, target: object, fn: None = None, kind: Kind = "before", **order: Unpack[HookOrder]
    ) -> Callable[[F], F]: ...

    @overload
    def hook(
        self, target: object, fn: Callable[..., Any], kind: Kind = "before", **order: Unpack[HookOrder]
    ) -> Hook: ...

    @arguments.lists_options(HookOrder, HOOK_ORDER)
    def hook(
        self,
        target: object,
        fn: Callable[..., Any] | None = None,
        kind: Kind = "before",
        **order: Unpack[HookOrder],
    ) -> Hook | Callable[[F], F]:
        """Puts a hook on a target; without `fn`, returns a decorator. `Hooks.add` explains the arguments.

        In a transaction, the hook is checked immediately and becomes active at the commit. The hook's source
        is the plugin's distribution, or the user.

        Raises:
            HookError: The target can't be hooked, or the hook doesn't fit the target. At the commit: the
                target already has the hook.
            OrderError: At the commit: the constraints of the hooks on the target form a cycle.
            TransactionClosedError: The transaction has ended.
        """
        arguments.check_names("hook", order, HOOK_ORDER)
        if fn is None:
            return decorator(self.hook, target, kind, order)
        with self._open() as staging:
            return staging.hook(target, fn, kind, **order)


class Registry(Registrar):
    """An open transaction of a runtime: all changes made through it are committed together, or none.

    A plugin's function receives a registry, which is committed when the function returns. Until then any
    thread may use it; later changes are refused.
    """

    def __init__(self, staging: Staging) -> None:
        self._staging = staging

    def _open(self) -> AbstractContextManager[Staging]:
        return nullcontext(self._staging)


def _each(
    argument: str, values: Iterable[T] | None, read: Callable[[str, T], Any], *, optional: bool = False
) -> list[Any]:
    found = arguments.as_list(argument, values, optional=optional)
    return [read(f"{argument}[{index}]", value) for index, value in enumerate(found)]


def _support(
    argument: str, device: str | DeviceSupport
) -> tuple[str, tuple[int, int] | None, tuple[int, int] | None]:
    if not isinstance(device, DeviceSupport):
        return arguments.text(argument, device), None, None
    return (
        arguments.text(f"{argument}.kind", device.kind),
        capability(f"{argument}.min_capability", device.min_capability),
        capability(f"{argument}.max_capability", device.max_capability),
    )
