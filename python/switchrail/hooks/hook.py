"""One hook, checked against its target when it is made."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final, Literal, get_args

from switchrail.errors import HookError
from switchrail.hooks.parameters import Parameters

Kind = Literal["before", "after", "around", "replace"]

KINDS: Final[tuple[str, ...]] = get_args(Kind)

_FIRST: Final[dict[str, tuple[str, ...]]] = {"after": ("result",), "around": ("original",)}


class _Sentinel(enum.Enum):
    RETURN_NONE = enum.auto()

    def __repr__(self) -> str:
        return "switchrail.hooks.RETURN_NONE"


RETURN_NONE: Final = _Sentinel.RETURN_NONE
"""What an `after` hook returns to make the result None; plain None leaves the result unchanged."""


def name_of(callable_: Callable[..., Any]) -> str:
    """The module and qualified name of a callable; for an object without a name, those of its class."""
    named: Any = callable_ if hasattr(callable_, "__qualname__") else type(callable_)
    return f"{named.__module__}.{named.__qualname__}"


SUSPENDING: Final = (
    inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
)
"""The flags of code whose call makes an object that runs later."""


def _nature(fn: Callable[..., Any]) -> str:
    """What a call of it makes."""
    if inspect.iscoroutinefunction(fn):
        return "coroutine"
    if inspect.isasyncgenfunction(fn):
        return "async generator"
    return "generator" if inspect.isgeneratorfunction(fn) else "plain"


@dataclass(frozen=True, eq=False)
class Hook:
    """A callable put on a target; compared by identity.

    Attributes:
        target: The function that is hooked; kept alive as long as the hook.
        fn: The callable.
        kind: Where it stands: `before`, `after`, `around` or `replace`.
        source: The distribution that it comes from, or another name for who added it.
        priority: Higher ones are nearer to the caller.
        before: Sources, or names of hooks, than which it is nearer to the caller on this target.
        after: Sources, or names of hooks, that are nearer to the caller on this target.
        owner: The `Hooks` that it belongs to.
    """

    target: FunctionType
    fn: Callable[..., Any]
    kind: Kind
    source: str
    priority: int
    before: tuple[str, ...]
    after: tuple[str, ...]
    owner: object

    def __post_init__(self) -> None:
        """Refuses what can't work.

        Raises:
            HookError: An unknown kind, a target or a callable that suspends, or parameters that don't fit.
        """
        if self.kind not in KINDS:
            raise HookError(
                f"unknown kind of hook {self.kind!r}; valid: {', '.join(KINDS)}",
                target=name_of(self.target),
                valid=KINDS,
            )
        if not callable(self.fn):
            raise self._refusal("the hook is not callable")
        if (
            isinstance(self.priority, bool)
            or not isinstance(self.priority, int)
            or abs(self.priority) >= 2**31
        ):
            raise self._refusal(f"its priority is {self.priority!r}; valid: an int of 32 bits")
        nature, valid = _nature(self.fn), {"plain"}
        if self.kind != "before":  # which runs within the call and decides on its arguments
            valid.add(_nature(self.target))
        if nature not in valid:
            raise self._refusal(
                f"the hook is a {nature} function; valid for this kind and target: "
                f"a {' or '.join(sorted(valid))} function"
            )
        try:
            parameters = Parameters.of(self.target.__code__)
        except ValueError as error:
            raise self._refusal(f"the target can't be hooked: {error}") from None
        problem = parameters.problem_of(self.fn, *_FIRST.get(self.kind, ()))
        if problem is not None:
            raise self._refusal(
                f"it can't be called as {parameters.call('fn', *_FIRST.get(self.kind, ()))}: {problem}"
            )

    def _refusal(self, why: str) -> HookError:
        return HookError(
            f"{self.kind} hook {self.name} of {self.source!r} on {self.target_name}: {why}",
            target=self.target_name,
        )

    @property
    def name(self) -> str:
        """The callable's module and qualified name."""
        return name_of(self.fn)

    @property
    def target_name(self) -> str:
        """The target's module and qualified name."""
        return name_of(self.target)

    def __repr__(self) -> str:
        return f"<{self.kind} hook {self.name} of {self.source!r} on {self.target_name}>"
