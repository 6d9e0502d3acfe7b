"""Checks of arguments. An unknown name, a wrong type or a value out of range raises an `ArgumentError`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Any, TypeVar

from switchrail.checks import shown
from switchrail.errors import ArgumentError
from switchrail.nearest import unknown

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

MOST = 2**32 - 1
"""Default upper bound of integers: the core stores most of them in 32 bits."""


def names_checked(function: F) -> F:
    """Decorates a method to raise an `ArgumentError` with the nearest names for unknown keywords."""
    valid = tuple(signature(function).parameters)[1:]  # leaves out `self`

    @wraps(function)
    def checked(*values: Any, **named: Any) -> Any:
        check_names(function.__name__, named, valid)
        return function(*values, **named)

    return checked  # type: ignore[return-value]


def check_names(function: str, given: Iterable[str], valid: Collection[str]) -> None:
    """Refuses keywords that a function doesn't have.

    Raises:
        ArgumentError: A keyword is unknown; the error has the nearest valid ones.
    """
    for name in given:
        if name not in valid:
            problem = f"{function}() has no argument {name!r}"
            meant = "preferences" if name == "backends" and "preferences" in valid else name
            raise unknown(ArgumentError, problem, meant, valid, argument=name, found=name)


def lists_options(options: type, defaults: Mapping[str, Any]) -> Callable[[F], F]:
    """Decorates a function that takes `**options`, so that its signature and `help` list each option.

    Args:
        options: The `TypedDict` of the options.
        defaults: The options' defaults, in the order in which the signature lists them.
    """

    def decorate(function: F) -> F:
        whole = signature(function)
        *explicit, _ = whole.parameters.values()
        listed = []
        for name, default in defaults.items():
            annotation = options.__annotations__[name]
            annotation = getattr(annotation, "__forward_arg__", annotation)
            listed.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation))
        function.__signature__ = whole.replace(parameters=[*explicit, *listed])  # type: ignore[attr-defined]
        return function

    return decorate


def refused(argument: str, found: object, valid: str) -> ArgumentError:
    """The error for an invalid argument."""
    problem = f"{argument} is {shown(found)}; valid: {valid}"
    return ArgumentError(problem, argument=argument, found=found)


def text(argument: str, found: object) -> str:
    """Checks that an argument is a string that can be encoded.

    Raises:
        ArgumentError: The argument is not a string, or has a lone surrogate.
    """
    if isinstance(found, str):
        try:
            found.encode()
        except UnicodeEncodeError:
            raise refused(argument, found, "a string without lone surrogates") from None
        return found
    raise refused(argument, found, "a string")


def optional_text(argument: str, found: object) -> str | None:
    """Checks like `text`, but accepts None."""
    return None if found is None else text(argument, found)


def flag(argument: str, found: object) -> bool:
    """Checks that an argument is a bool.

    Raises:
        ArgumentError: The argument is not a bool.
    """
    if isinstance(found, bool):
        return found
    raise refused(argument, found, "True or False")


def whole(argument: str, found: object, least: int = 0, most: int = MOST) -> int:
    """Checks that an argument is an integer (not a bool) within inclusive bounds.

    Raises:
        ArgumentError: The argument is not an integer, or is out of bounds.
    """
    number = _index(found)
    if number is None or not least <= number <= most:
        raise refused(argument, found, f"an integer from {least} to {most}")
    return number


def pair(argument: str, found: object, least: int = 0, meaning: str = "two integers") -> tuple[int, int]:
    """Checks that an argument is a tuple or list of two integers.

    Raises:
        ArgumentError: The argument is not such a pair, or an integer is out of bounds.
    """
    if isinstance(found, (tuple, list)) and len(found) == 2:
        first, second = (_index(each) for each in found)
        if (
            first is not None
            and second is not None
            and least <= min(first, second) <= max(first, second) <= MOST
        ):
            return first, second
    raise refused(argument, found, f"{meaning}, each from {least} to {MOST}")


def as_list(argument: str, values: Iterable[T] | None, *, optional: bool = False) -> list[T]:
    """The values of an argument that takes an iterable of values, as a list.

    Args:
        argument: The argument's name, for the error.
        values: The given values.
        optional: Whether None is accepted, as an empty list.

    Raises:
        ArgumentError: The argument is a single string, a mapping, or not iterable.
    """
    if optional and values is None:
        return []
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise refused(argument, values, "a list or other iterable, but not a string or a mapping")
    return list(values)


def texts(argument: str, values: Iterable[str] | None, *, optional: bool = False) -> list[str]:
    """The values of an argument that takes an iterable of strings, as a list.

    Raises:
        ArgumentError: As for `as_list` and, for each value, `text`.
    """
    found = as_list(argument, values, optional=optional)
    return [text(f"{argument}[{index}]", value) for index, value in enumerate(found)]


def by_name(argument: str, values: Mapping[str, Any] | None) -> dict[str, Any]:
    """Checks that an argument is a mapping with strings as keys; None becomes an empty mapping.

    Raises:
        ArgumentError: The argument is not a mapping, or a key is not a string.
    """
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise refused(argument, values, "a mapping, or None")
    return {text(f"a key of {argument}", key): value for key, value in values.items()}


def texts_by_name(argument: str, values: Mapping[str, str] | None) -> dict[str, str]:
    """Checks that an argument maps strings to strings; None becomes an empty mapping.

    Raises:
        ArgumentError: The argument is not a mapping, or a key or value is not a string.
    """
    return {key: text(f"{argument}[{key!r}]", value) for key, value in by_name(argument, values).items()}


def instance(argument: str, found: object, cls: type[T]) -> T:
    """Checks that an argument is an instance of a class.

    Raises:
        ArgumentError: The argument is not an instance of the class.
    """
    if isinstance(found, cls):
        return found
    raise refused(argument, found, f"a {cls.__name__}")


def _index(found: object) -> int | None:
    if isinstance(found, bool):
        return None
    try:
        return operator.index(found)  # type: ignore[arg-type]
    except TypeError:
        return None
