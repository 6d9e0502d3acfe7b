"""Finds the valid names nearest to a wrong one, for messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from switchrail import _core
from switchrail.errors import SwitchrailError

ErrorT = TypeVar("ErrorT", bound=SwitchrailError)


def nearest(found: object, valid: Iterable[str]) -> tuple[tuple[str, ...], str]:
    """The valid names near to a wrong one, nearest first, and an ending for the message that lists them.

    The ending is like `; nearest: a, b`, or empty if no name is near.
    """
    names = tuple(_core.nearest(str(found), list(valid)))
    return names, f"; nearest: {', '.join(names)}" if names else ""


def unknown(
    error: type[ErrorT], problem: str, found: object, valid: Iterable[str], /, **fields: Any
) -> ErrorT:
    """The error for an unknown name: the problem, then the nearest and the valid names.

    Args:
        error: The class of the error. It gets the fields `valid` and `nearest`.
        problem: The start of the message.
        found: The unknown name.
        valid: The valid names.
        **fields: Further fields of the error.
    """
    names = tuple(valid)
    near, hint = nearest(found, names)
    listed = ", ".join(names) or "none"
    return error(f"{problem}{hint}; valid: {listed}", **fields, valid=names, nearest=near)
