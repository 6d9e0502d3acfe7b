"""Validates the values of options objects."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final, TypeGuard

from switchrail.errors import SwitchrailError

_BEYOND: Final = 2**64


def refuse(error: type[SwitchrailError], options: object, checks: Mapping[str, tuple[bool, str]]) -> None:
    """Raises one error that lists all invalid attributes of an options object, if there are any.

    Args:
        error: The class to raise, with the fields `problems` (name -> message) and `valid` (name -> text).
        options: The object.
        checks: For each attribute, whether its value is valid, and a description of valid values.
    """
    valid = {name: description for name, (is_valid, description) in checks.items() if not is_valid}
    if valid:
        problems = {
            name: f"{name} must be {description}, got {shown(getattr(options, name))}"
            for name, description in valid.items()
        }
        message = f"{type(options).__name__}: {'; '.join(problems.values())}"
        raise error(message, problems=problems, valid=valid)


def shown(found: object, limit: int | None = 200) -> str:
    """At most `limit` characters of the value's `repr`; all of them if `limit` is None.

    A description stands for an integer of more than 64 bits, and for a value whose `repr` fails.
    """
    if isinstance(found, int) and abs(found) >= _BEYOND:  # Python refuses to format very large integers
        return f"an integer of {found.bit_length()} bits, more than 64"
    try:
        return repr(found)[:limit]
    except Exception as error:  # from the value's `__repr__`
        return f"a {type(found).__qualname__}, whose repr raised {type(error).__qualname__}"


def is_integer(value: object, least: int) -> TypeGuard[int]:
    """Whether `value` is an integer (not a bool) of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value


def is_count(value: object, least: int = 1) -> TypeGuard[int]:
    """Whether `value` is an integer (not a bool) of at least `least` that fits in 64 bits."""
    return is_integer(value, least) and value < _BEYOND


def is_number(value: object) -> bool:
    """Whether `value` is a finite int or float (not a bool) within the range of floats."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
