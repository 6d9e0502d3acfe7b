"""Checks of arguments: a wrong type or a value out of range is an ArgumentError that names the argument."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Any, TypeVar

from switchrail.errors import ArgumentError
from switchrail.nearest import nearest

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

MOST = 2**32 - 1
"""The largest size and count that the core keeps."""


def names_checked(function: F) -> F:
    """Decorates a function: a keyword that it doesn't have is an `ArgumentError` with the nearest ones."""
    valid = tuple(signature(function).parameters)[1:]  # without self

    @wraps(function)
    def checked(*values: Any, **named: Any) -> Any:
        check_names(function.__name__, named, valid)
        return function(*values, **named)

    return checked  # type: ignore[return-value]


def check_names(function: str, given: Iterable[str], valid: Collection[str]) -> None:
    """Refuses keywords that a function doesn't have.

    Raises:
        ArgumentError: One of them is not valid; the error has the nearest ones.
    """
    for name in given:
        if name not in valid:
            near, hint = nearest(name, valid)
            raise ArgumentError(
                f"{function}() has no argument {name!r}{hint}; valid: {', '.join(valid)}",
                argument=name,
                found=name,
                valid=tuple(valid),
                nearest=near,
            )


def lists_options(options: type, defaults: Mapping[str, Any]) -> Callable[[F], F]:
    """Decorates a function that takes `**options`: its signature, which `help` shows, lists them one by one.

    Args:
        options: The `TypedDict` of the options.
        defaults: Their defaults, in the order of the signature.
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
    """The error for an argument that can't be meant."""
    problem = f"{argument} is {described(found)}; valid: {valid}"
    return ArgumentError(problem, argument=argument, found=found)


def described(found: object) -> str:
    """A value in short, as Python writes it; its type where it can't be written."""
    try:
        return reprlib.repr(found)
    except Exception:  # a number of more digits than Python writes
        return f"a {type(found).__name__}"


def text(argument: str, found: object) -> str:
    """A text that can be encoded.

    Raises:
        ArgumentError: It is something else, or has half of a surrogate pair.
    """
    if isinstance(found, str):
        try:
            found.encode()
        except UnicodeEncodeError:
            raise refused(argument, found, "a text without halves of surrogate pairs") from None
        return found
    raise refused(argument, found, "a text")


def optional_text(argument: str, found: object) -> str | None:
    """A text as in `text`, or None."""
    return None if found is None else text(argument, found)


def flag(argument: str, found: object) -> bool:
    """True or False, and no number in their place.

    Raises:
        ArgumentError: It is something else.
    """
    if isinstance(found, bool):
        return found
    raise refused(argument, found, "True or False")


def whole(argument: str, found: object, least: int = 0, most: int = MOST) -> int:
    """A whole number within bounds, both included; True and False are none.

    Raises:
        ArgumentError: It is something else, or out of bounds.
    """
    number = _index(found)
    if number is None or not least <= number <= most:
        raise refused(argument, found, f"a whole number from {least} to {most}")
    return number


def pair(argument: str, found: object, least: int = 0, meaning: str = "two whole numbers") -> tuple[int, int]:
    """Two whole numbers as a tuple or list.

    Raises:
        ArgumentError: It is something else, or one is out of bounds.
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


def several(argument: str, values: Iterable[T] | None, *, optional: bool = False) -> list[T]:
    """The values of an argument that takes several.

    Args:
        argument: Its name.
        values: What was given.
        optional: Whether None will do, for no value.

    Raises:
        ArgumentError: One text was given, or nothing that has values.
    """
    if optional and values is None:
        return []
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise refused(argument, values, "a list or another iterable that is no text")
    return list(values)


def texts(argument: str, values: Iterable[str] | None, *, optional: bool = False) -> list[str]:
    """The values of an argument that takes several texts.

    Raises:
        ArgumentError: One text was given, or something among them is no text.
    """
    found = several(argument, values, optional=optional)
    return [text(f"{argument}[{index}]", value) for index, value in enumerate(found)]


def by_name(argument: str, values: Mapping[str, Any] | None) -> dict[str, Any]:
    """A mapping whose keys are texts; None is an empty one.

    Raises:
        ArgumentError: It is something else.
    """
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise refused(argument, values, "a mapping, or None")
    return {text(f"a key of {argument}", key): value for key, value in values.items()}


def texts_by_name(argument: str, values: Mapping[str, str] | None) -> dict[str, str]:
    """A mapping of texts to texts; None is an empty one.

    Raises:
        ArgumentError: It is something else.
    """
    return {key: text(f"{argument}[{key!r}]", value) for key, value in by_name(argument, values).items()}


def instance(argument: str, found: object, cls: type[T]) -> T:
    """An object of a class.

    Raises:
        ArgumentError: It is of another.
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
