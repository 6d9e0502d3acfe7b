"""Renames `super` in the code of functions, so that they call another function instead."""

from __future__ import annotations

import dis
import weakref
from collections.abc import Callable, Sequence
from types import CellType, CodeType, FunctionType
from typing import Any, Final

from switchrail import garbage

_SUPER: Final = "__switchrail_super"

_redirected: Final[weakref.WeakSet[FunctionType]] = weakref.WeakSet()


def redirect(functions: Sequence[FunctionType], to: Callable[..., Any]) -> None:
    """Permanently makes functions call `to` instead of `super`."""
    for function in functions:
        function.__globals__[_SUPER] = to
        _redirected.add(function)
        function.__code__ = redirected(function, function.__code__)


def redirected(function: FunctionType, code: CodeType) -> CodeType:
    """A function's code, with `super` renamed if the function was redirected."""
    if function not in _redirected:
        return code
    renamed = _renamed(code)
    return code if renamed == code else renamed


def closing_over(cls: type) -> list[FunctionType]:
    """The functions in a class's body that refer to `__class__`, as a bare `super()` does."""
    cells = [cell for cell in garbage.referrers(cls) if type(cell) is CellType]
    if not cells:
        return []
    closures = [closure for closure in garbage.referrers(*cells) if type(closure) is tuple]
    return [
        function
        for function in garbage.referrers(*closures)
        if type(function) is FunctionType and "__class__" in function.__code__.co_freevars
    ]


def has_attribute_super(code: CodeType) -> bool:
    """Whether code uses an attribute named `super`, which would be renamed too."""
    return any(
        instruction.argval == "super" and instruction.opname.split("_")[-1] in ("ATTR", "METHOD")
        for instruction in dis.get_instructions(code)
    ) or any(has_attribute_super(const) for const in code.co_consts if isinstance(const, CodeType))


def _renamed(code: CodeType) -> CodeType:
    return code.replace(
        co_names=tuple(_SUPER if name == "super" else name for name in code.co_names),
        co_consts=tuple(
            _renamed(const) if isinstance(const, CodeType) else const for const in code.co_consts
        ),
    )
