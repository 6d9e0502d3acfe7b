"""One hook, and the order of a target's hooks."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, Final, Literal, TypedDict, get_args

from switchrail import _core
from switchrail.checks import shown
from switchrail.errors import HookError
from switchrail.foreign import one_line

Kind = Literal["before", "after", "around", "replace"]

KINDS: Final[tuple[str, ...]] = get_args(Kind)


class HookOrder(TypedDict, total=False):
    """The options that determine when a hook runs; `Hooks.add` explains them."""

    priority: int
    before: Sequence[str]
    after: Sequence[str]


class HookSource(TypedDict, total=False):
    """The options that state which distribution or plugin a hook comes from; `Hooks.add` explains them."""

    source: str
    plugin: str | None
    version: str | None


class HookOptions(HookSource, HookOrder, total=False):
    """All options of a hook."""

    strict: bool | None


HOOK_ORDER: Final[HookOrder] = {"priority": 0, "before": (), "after": ()}

HOOK_OPTIONS: Final[HookOptions] = {
    "source": "user",
    "plugin": None,
    "version": None,
    **HOOK_ORDER,
    "strict": None,
}


class _Sentinel(enum.Enum):
    RETURN_NONE = enum.auto()

    def __repr__(self) -> str:
        return "switchrail.hooks.RETURN_NONE"


RETURN_NONE: Final = _Sentinel.RETURN_NONE
"""Returned by an `after` hook to make the result None; a plain None leaves the result unchanged."""


def name_of(callable_: Callable[..., Any]) -> str:
    """The module and qualified name of a callable; of its class, if the callable has no name."""
    named: Any = callable_ if hasattr(callable_, "__qualname__") else type(callable_)
    return f"{getattr(named, '__module__', None) or 'builtins'}.{named.__qualname__}"


def nature_of(fn: Callable[..., Any]) -> str:
    """The sort of a function: `coroutine`, `generator` or `async generator`; `plain` for all others."""
    for each in (fn, type(fn).__call__):
        if inspect.iscoroutinefunction(each):
            return "coroutine"
        if inspect.isasyncgenfunction(each):
            return "async generator"
        if inspect.isgeneratorfunction(each):
            return "generator"
    return "plain"


SUSPENDING: Final = (
    inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
)
"""The flags of code whose call returns a suspended object, such as a coroutine."""


@dataclass(frozen=True, eq=False)
class Hook:
    """A callable put on a target. Hooks are compared by identity.

    Attributes:
        target_name: The dotted path that was given, or the target's module and qualified name.
        fn: The callable.
        kind: `before`, `after`, `around` or `replace`.
        source: The distribution that provides the hook, or another name for the hook's author.
        priority: Hooks of higher priority are nearer to the caller.
        before: Sources, or names of hooks, that run after this one.
        after: Sources, or names of hooks, that run before this one.
        owner: The `Hooks` object that the hook belongs to.
        site: The target's `Site`; None if the target did not exist when the hook was created.
        path: The dotted path of the target, by which the target is found when a module is imported later or
            again; None if no path leads to the target.
        plugin: The distribution's plugin that added the hook, or None.
        version: The distribution's version, or None.
        strict: Whether a missing or unfit target is an error.
        name: The callable's module and qualified name.
        nature: The sort of function that the callable is; see `nature_of`.
        signature: The callable's parameters; None if they are unknown.

    Name, nature and signature are read when the hook is created. Reading them may run the callable's own
    code, which must not happen later, while a change holds the lock.
    """

    target_name: str
    fn: Callable[..., Any]
    kind: Kind
    source: str
    priority: int
    before: tuple[str, ...]
    after: tuple[str, ...]
    owner: Any
    site: Any = None
    path: str | None = None
    plugin: str | None = None
    version: str | None = None
    strict: bool = False
    name: str = field(init=False)
    nature: str = field(init=False)
    signature: inspect.Signature | None = field(init=False)

    def __post_init__(self) -> None:
        """Refuses hooks that can't work.

        Raises:
            HookError: The kind is unknown, the priority is out of range, a name is not a string, the hook is
                not callable, a class has a kind other than `replace`, or reading the signature fails.
        """
        object.__setattr__(self, "name", name_of(self.fn))
        if self.kind not in KINDS:
            raise HookError(
                f"unknown kind of hook {self.kind!r}; valid: {', '.join(KINDS)}",
                target=self.target_name,
                valid=KINDS,
            )
        if not callable(self.fn):
            raise self.refusal("the hook is not callable")
        if (
            isinstance(self.priority, bool)
            or not isinstance(self.priority, int)
            or abs(self.priority) >= 2**31
        ):
            raise self.refusal(f"its priority is {self.priority!r}; valid: an int of 32 bits")
        for name in (self.source, *self.before, *self.after):
            if not isinstance(name, str):
                raise self.refusal(f"{name!r} is not a name of a hook or source; valid: a string")
        if isinstance(self.fn, type) and self.kind != "replace":
            raise self.refusal(
                "the hook is a class, whose calls create instances; valid: replace, or a function"
            )
        object.__setattr__(self, "nature", nature_of(self.fn))
        object.__setattr__(self, "signature", self._read_signature())

    def repeats(self, other: Hook) -> bool:
        """Whether two hooks have the same owner, kind and callable."""
        a, b = self.fn, other.fn
        if isinstance(a, MethodType) and isinstance(b, MethodType):  # each access creates a new bound method
            is_same = a.__self__ is b.__self__ and a.__func__ is b.__func__
        else:
            is_same = a is b
        return is_same and self.owner is other.owner and self.kind == other.kind

    def refusal(self, why: str) -> HookError:
        """The error that names this hook and says why it is refused."""
        return HookError(f"{self._described}: {why}", target=self.target_name)

    def _read_signature(self) -> inspect.Signature | None:
        try:
            return inspect.signature(self.fn)
        except (TypeError, ValueError):  # a C function that does not publish its parameters
            return None
        except Exception as error:  # the object's own `__signature__` raised it
            raise self.refusal(f"reading the hook's signature raised {shown(error, None)}") from error

    @property
    def _described(self) -> str:
        version = f" {self.version}" if self.version is not None else ""
        plugin = f", plugin {self.plugin!r}," if self.plugin is not None else ""
        return f"{self.kind} hook {self.name} of {self.source!r}{version}{plugin} on {self.target_name}"

    def __repr__(self) -> str:
        return f"<{one_line(self._described)}>"


def ordered(hooks: Sequence[Hook]) -> tuple[Hook, ...]:
    """Sorts the hooks of one target into their running order.

    Raises:
        OrderError: The hooks' constraints form a cycle.
    """
    items = [
        {
            "key": hook.name,
            "source": hook.source,
            "priority": hook.priority,
            "before": list(hook.before),
            "after": list(hook.after),
        }
        for hook in hooks
    ]
    return tuple(hooks[i] for i in _core.order(items))
