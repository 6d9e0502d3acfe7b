"""Functions that plugins and programs register for the operations of platforms."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from switchrail.errors import BackendImportError, RegistrationError
from switchrail.forks import lock_across_forks
from switchrail.nearest import unknown
from switchrail.overrides import call_problem

Capability = tuple[int, int]
Support = tuple[str, Capability | None, Capability | None]
"""A kind of device, and its lowest and highest supported compute capability; None means no limit."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function for an operation.

    Attributes:
        operation: The operation's name.
        target: The function, or its path `module:function`, which is imported when an engine is created.
        devices: The supported devices.
        source: The plugin or program that registered it.
    """

    operation: str
    target: Callable[..., Any] | str
    devices: tuple[Support, ...]
    source: str

    def runs_on(self, kind: str, capability: Capability | None) -> bool:
        """Whether it supports such a device."""
        return any(
            kind == its_kind
            and (least is None or (capability is not None and capability >= least))
            and (most is None or (capability is not None and capability <= most))
            for its_kind, least, most in self.devices
        )

    def overlaps(self, other: Function) -> bool:
        """Whether both are for the same operation and a common kind of device."""
        return self.operation == other.operation and not {one[0] for one in self.devices}.isdisjoint(
            one[0] for one in other.devices
        )


class Functions:
    """The functions of one runtime. Readers use an immutable tuple and never wait."""

    def __init__(self, operations: Iterable[tuple[str, Callable[..., Any]]]) -> None:
        """Starts without functions.

        Args:
            operations: Names of operations, each with a function whose signature its functions must match.
        """
        self._operations = dict(operations)
        self._all: tuple[Function, ...] = ()
        self._lock = lock_across_forks()

    def check(self, function: Function) -> None:
        """Checks that a function fits its operation.

        Raises:
            RegistrationError: There is no such operation, or the function's signature does not match.
        """
        name = function.operation
        if name not in self._operations:
            problem = f"there is no operation {name!r}"
            raise unknown(RegistrationError, problem, name, self._operations, name=name)
        if not isinstance(function.target, str):
            self._check_call(function, function.target)

    def add(self, *functions: Function) -> None:
        """Adds functions: all, or none.

        Raises:
            RegistrationError: An operation already has a function on such a device.
        """
        with self._lock:
            every = self._all
            for function in functions:
                other = next((other for other in every if function.overlaps(other)), None)
                if other is not None:
                    raise RegistrationError(
                        f"{function.source} brings a function for operation {function.operation!r}, "
                        f"which has one of {other.source} on such a device; valid: one of the two",
                        name=function.operation,
                        found=other.source,
                    )
                every = (*every, function)
            self._all = every

    def remove(self, *functions: Function) -> None:
        """Removes functions; ignores those that were not added."""
        with self._lock:
            self._all = tuple(one for one in self._all if not any(one is other for other in functions))

    def find(self, operation: str, kind: str, capability: Capability | None) -> Callable[..., Any] | None:
        """The function for an operation on a device; None if there is none.

        Raises:
            BackendImportError: Its path doesn't lead to a function.
            RegistrationError: Its signature does not match the operation's.
        """
        for function in self._all:
            if function.operation == operation and function.runs_on(kind, capability):
                return self._load(function)
        return None

    def _load(self, function: Function) -> Callable[..., Any]:
        if not isinstance(function.target, str):
            return function.target
        module, _, name = function.target.partition(":")
        try:
            found = getattr(importlib.import_module(module), name)
        except Exception as error:
            raise BackendImportError(
                f"the function of {function.source} for operation {function.operation!r} can't be imported "
                f"from {function.target!r}: {error!r}",
                name=function.operation,
                path=function.target,
            ) from error
        return self._check_call(function, found)

    def _check_call(self, function: Function, found: Any) -> Callable[..., Any]:
        problem = call_problem(found, self._operations[function.operation]) if callable(found) else "is none"
        if problem is not None:
            raise RegistrationError(
                f"{found!r} of {function.source} can't serve operation {function.operation!r}: it {problem}",
                name=function.operation,
                found=found,
            )
        return found  # type: ignore[no-any-return]


__all__ = ["Function", "Functions"]
