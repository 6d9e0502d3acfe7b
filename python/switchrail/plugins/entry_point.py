"""Imports and checks the function that an entry point names."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from switchrail._core import Plugin
from switchrail.errors import EntryPointError
from switchrail.nearest import nearest


def import_target(plugin: Plugin) -> Any:
    """Imports the target of a plugin's entry point. Exceptions that the module raises pass through.

    Raises:
        EntryPointError: The target does not exist, or is a module.
    """
    module, _, attribute = plugin.target.partition(":")
    if not attribute:
        raise error_of(plugin, f"it names a module; valid: a function, such as '{module}:register'")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists, but imports a missing module
        problem = f"there is no module {error.name!r}; valid: a module that {plugin.distribution} installs"
        raise error_of(plugin, problem) from error
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            names, hint = nearest(part, _public(found))
            raise error_of(plugin, f"{found!r} has no attribute {part!r}{hint}", nearest=names) from error
    return found


def _public(found: object) -> list[str]:
    return [name for name in dir(found) if not name.startswith("__")]


def check_function(plugin: Plugin, found: object, argument: str) -> Callable[..., Any]:
    """Checks that an entry point's target is a function that takes one argument.

    Args:
        plugin: The plugin of the entry point.
        found: The target.
        argument: The argument in words, for the error.

    Raises:
        EntryPointError: The target can't be called with one argument, or is a generator or async function.
    """
    valid = f"valid: a plain function that takes {argument}"
    if isinstance(found, type):
        raise error_of(plugin, f"it is the class {found.__qualname__}; {valid}")
    if not callable(found):
        raise error_of(plugin, f"it is {found!r}, which can't be called; {valid}")
    suspending = next(
        (kind for each in (found, found.__call__) for kind, is_kind in _SUSPENDING.items() if is_kind(each)),
        None,
    )
    if suspending is not None:
        raise error_of(plugin, f"it is {suspending}, whose body would not run when it is called; {valid}")
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # raised for a C function without a signature
        return found
    try:
        signature.bind(None)
    except TypeError as error:
        raise error_of(plugin, f"its parameters are {signature}: {error}; {valid}") from error
    return found


def error_of(plugin: Plugin, problem: str, **fields: Any) -> EntryPointError:
    """The error for an invalid entry point."""
    return EntryPointError(
        f"entry point {plugin.name!r} of {plugin.distribution} is {plugin.target!r}: {problem}",
        target=plugin.target,
        **fields,
    )


_SUSPENDING: dict[str, Callable[[object], bool]] = {
    "an async generator function": inspect.isasyncgenfunction,
    "an async function": inspect.iscoroutinefunction,
    "a generator function": inspect.isgeneratorfunction,
}
