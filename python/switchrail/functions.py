"""Registered functions for operations, and registered families of models."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from switchrail.checks import shown
from switchrail.errors import BackendImportError, RegistrationError
from switchrail.forks import lock_across_forks
from switchrail.nearest import unknown
from switchrail.overrides import call_problem

Capability = tuple[int, int]
Support = tuple[str, Capability | None, Capability | None]
"""A kind of device with its lowest and highest supported compute capability; None means no limit."""


@dataclass(frozen=True, slots=True)
class Function:
    """A registered function that implements an operation.

    Attributes:
        operation: The operation's name.
        target: The function, or its path `module:function`, which is imported when an engine is created.
        devices: The supported devices.
        source: The plugin or program that registered the function.
    """

    operation: str
    target: Callable[..., Any] | str
    devices: tuple[Support, ...]
    source: str

    def runs_on(self, kind: str, capability: Capability | None) -> bool:
        """Whether the function supports a device."""
        return any(
            kind == its_kind
            and (least is None or (capability is not None and capability >= least))
            and (most is None or (capability is not None and capability <= most))
            for its_kind, least, most in self.devices
        )

    def overlaps(self, other: Function | ModelFamily) -> bool:
        """Whether both are functions for the same operation and have a kind of device in common."""
        return (
            isinstance(other, Function)
            and self.operation == other.operation
            and not {one[0] for one in self.devices}.isdisjoint(one[0] for one in other.devices)
        )

    def __str__(self) -> str:
        return f"function for operation {self.operation!r}"


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """A family of models.

    Attributes:
        model_type: The `model_type` in the configurations of the family's models.
        target: A `switchrail.engine.models.families.Family`, or the path `module:name` of one, which is
            imported when an engine is created.
        kinds: A function that returns the kind of each layer of a configuration, or the function's path;
            None if the core knows the model type.
        source: The plugin or program that registered the family.
    """

    model_type: str
    target: object
    kinds: Callable[[Mapping[str, Any]], Sequence[str]] | str | None
    source: str

    def overlaps(self, other: Function | ModelFamily) -> bool:
        """Whether both are families for the same model type."""
        return isinstance(other, ModelFamily) and self.model_type == other.model_type

    def __str__(self) -> str:
        return f"family for model type {self.model_type!r}"


class Functions:
    """The functions and families of one runtime. Readers use an immutable tuple and never wait."""

    def __init__(self, operations: Iterable[tuple[str, Callable[..., Any]]]) -> None:
        """Starts without functions.

        Args:
            operations: For each operation, its name and a function with the signature that implementations
                must match.
        """
        self._operations = dict(operations)
        self._all: tuple[Function | ModelFamily, ...] = ()
        self._lock = lock_across_forks()

    def check(self, function: Function | ModelFamily) -> None:
        """Checks that a function fits its operation. Families are checked when an engine is created.

        Raises:
            RegistrationError: There is no such operation, or the function's signature does not match. If the
                function is given by its path, `find` checks the signature.
        """
        if isinstance(function, ModelFamily):
            return
        name = function.operation
        if name not in self._operations:
            problem = f"there is no operation {name!r}"
            raise unknown(RegistrationError, problem, name, self._operations, name=name)
        if not isinstance(function.target, str):
            self._check_call(function, function.target)

    def add(self, *functions: Function | ModelFamily) -> None:
        """Adds functions and families: all, or none.

        Raises:
            RegistrationError: An operation already has a function for one of the kinds of device, or a model
                type already has a family.
        """
        with self._lock:
            every = self._all
            for function in functions:
                other = next((other for other in every if function.overlaps(other)), None)
                if other is not None:
                    raise RegistrationError(
                        f"both {other.source} and {function.source} register a {function}; "
                        "valid: only one of them",
                        name=function.operation if isinstance(function, Function) else function.model_type,
                        found=other.source,
                    )
                every = (*every, function)
            self._all = every

    def remove(self, *functions: Function | ModelFamily) -> None:
        """Removes functions and families; ignores those that were not added."""
        with self._lock:
            self._all = tuple(one for one in self._all if not any(one is other for other in functions))

    def find(self, operation: str, kind: str, capability: Capability | None) -> Callable[..., Any] | None:
        """The function for an operation on a device; None if there is none.

        Raises:
            BackendImportError: The function's path doesn't lead to a function.
            RegistrationError: The function's signature does not match the operation's.
        """
        for function in self._all:
            if (
                isinstance(function, Function)
                and function.operation == operation
                and function.runs_on(kind, capability)
            ):
                if not isinstance(function.target, str):
                    return function.target
                return self._check_call(function, _imported(function, function.target, operation))
        return None

    def family(self, model_type: object) -> Any:
        """The family that was registered for a model type; None if there is none.

        Raises:
            BackendImportError: The family can't be imported from its path.
        """
        found = self._family(model_type)
        if found is None or not isinstance(found.target, str):
            return found and found.target
        return _imported(found, found.target, found.model_type)

    def kinds(self, config: Mapping[str, Any]) -> Sequence[str] | None:
        """The kinds of a configuration's layers; None if no registered family provides them.

        Raises:
            BackendImportError: The family's function can't be imported from its path.
        """
        found = self._family(config.get("model_type"))
        if found is None or found.kinds is None:
            return None
        kinds: Any = found.kinds
        if isinstance(kinds, str):
            kinds = _imported(found, kinds, found.model_type)
        return list(kinds(config))

    def _family(self, model_type: object) -> ModelFamily | None:
        found = (one for one in self._all if isinstance(one, ModelFamily) and one.model_type == model_type)
        return next(found, None)

    def _check_call(self, function: Function, found: Any) -> Callable[..., Any]:
        problem = (
            call_problem(found, self._operations[function.operation]) if callable(found) else "isn't callable"
        )
        if problem is not None:
            raise RegistrationError(
                f"{found!r} of {function.source} can't serve operation {function.operation!r}: it {problem}",
                name=function.operation,
                found=found,
            )
        return found  # type: ignore[no-any-return]


def _imported(one: Function | ModelFamily, path: str, name: str) -> Any:
    module, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise BackendImportError(
            f"{one.source}: the {one} can't be imported from {path!r}: {shown(error, None)}",
            name=name,
            path=path,
        ) from error
