"""Shortcuts for the operators of Triton's interpreter.

An operator of the interpreter converts both operands to a common type and shape, checks them, and calls a
numpy function. This call takes only a tenth of the time, so a shortcut makes only this call. The first
operation on two types runs both ways. If the results are equal, later operations on these types use the
shortcut.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

Operator = Callable[..., Any]
FUNCTIONS: dict[str, Operator] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.divide,
    "mod": np.fmod,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
NUMBERS = {"fp32": (int, float), "fp16": (int, float), "int32": (int,), "int64": (int,)}
"""By type of a value: the types of Python numbers that an operator converts to this type."""
LOGIC = np.bitwise_and, np.bitwise_or
"""The only functions with shortcuts for values of type int1, since numpy's arithmetic on bools differs."""


class _Result(NamedTuple):
    """The common part of all results for the same types."""

    type: Any
    dtype: Any
    shape: Any
    numel: Any
    stored: Any
    numpy: np.dtype[Any]
    function: Operator
    operands: Any
    """The types of the operands; while they are kept here, no other types can get their ids."""


KNOWN: dict[str, dict[Any, _Result | None]] = {}
"""By operator, then by the types of its operands: the common part of the results, or None without a shortcut.

The key of `__getitem__` is the tensor's type and, for each index, whether it is None.
"""


class Operators:
    """Makes the shortcuts for the methods of Triton's tensors."""

    def __init__(self, core: Any, handle: Any) -> None:
        self._tensor, self._constexpr, self._handle = core.tensor, core.constexpr, handle

    def find(self, name: str, original: Operator) -> Operator | None:
        """The shortcut for a method such as `__add__` or `__rsub__`, or None."""
        known = KNOWN.setdefault(name, {})
        plain = name.strip("_")
        if plain == "getitem":
            return self._index(original, known)
        if plain in FUNCTIONS:
            return self._operate(FUNCTIONS[plain], original, known)
        if plain[:1] == "r" and plain[1:] in FUNCTIONS:
            return self._operate(partial(_reversed, FUNCTIONS[plain[1:]]), original, known)
        return None

    def _make(self, data: Any, result: _Result) -> Any:
        handle = self._handle.__new__(self._handle)
        handle.data, handle.dtype, handle.attr = data, result.stored, {}
        made = self._tensor.__new__(self._tensor)
        made.handle, made.type, made.dtype, made.shape, made.numel = handle, *result[:4]
        return made

    def _operate(self, function: Operator, original: Operator, known: dict[Any, _Result | None]) -> Operator:
        tensor, constexpr, make = self._tensor, self._constexpr, self._make

        def operate(self: Any, other: Any, **kwargs: Any) -> Any:
            key: Any
            kind = type(other)
            if kind is constexpr:
                other = other.value
                kind = type(other)
            if kind is tensor:
                key, operand = (id(self.type), id(other.type)), other.handle.data
            else:
                if kind is int and not -(2**31) <= other < 2**31:
                    return original(self, other)  # it may refuse the number
                key, operand = (id(self.type), kind), other
            if key not in known:
                expected = original(self, other)
                types = self.type, other.type if kind is tensor else None
                chosen = _choose(function, self.dtype, other.dtype if kind is tensor else kind)
                known[key] = chosen and _compare(chosen(self.handle.data, operand), expected, chosen, types)
                return expected
            result = known[key]
            if result is not None:
                data = result.function(self.handle.data, operand)
                if data.dtype is result.numpy:
                    return make(data, result)
            return original(self, other)

        return operate

    def _index(self, original: Operator, known: dict[Any, _Result | None]) -> Operator:
        whole, make = slice(None), self._make

        def index(self: Any, slices: Any, **kwargs: Any) -> Any:
            if type(slices) is not tuple or any(each is not None and each != whole for each in slices):
                return original(self, slices)
            key = id(self.type), *(each is None for each in slices)
            if key not in known:
                expected = original(self, slices)
                data = self.handle.data
                known[key] = (
                    _compare(data[slices], expected, np.ndarray.__getitem__, self.type)
                    if self.type.is_block()
                    else None
                )
                return expected
            result = known[key]
            return original(self, slices) if result is None else make(self.handle.data[slices], result)

        return index


def _reversed(function: Operator, left: Any, right: Any) -> Any:
    return function(right, left)


def _choose(function: Operator, left: Any, right: Any) -> Operator | None:
    """The function to call on a value of type `left` and a value or number of type `right`, or None."""
    if isinstance(right, type):
        return function if right in NUMBERS.get(left.name, ()) else None
    if left.is_ptr():
        is_offset = function is np.add and right.name in ("int32", "int64")
        return partial(_move, max(1, left.element_ty.primitive_bitwidth // 8)) if is_offset else None
    is_served = left.name in NUMBERS or (left.name == "int1" and function in LOGIC)
    return function if left.name == right.name and is_served else None


def _move(size: int, pointers: Any, offsets: Any) -> Any:
    return pointers + size * offsets.astype(np.uint64)


def _compare(data: Any, expected: Any, function: Operator, operands: Any) -> _Result | None:
    """The common part of the results, or None if `data` isn't the expected result."""
    known = expected.handle.data
    if data.dtype is not known.dtype or data.shape != known.shape or data.tobytes() != known.tobytes():
        return None
    return _Result(
        expected.type,
        expected.dtype,
        expected.shape,
        expected.numel,
        expected.handle.dtype,
        data.dtype,
        function,
        operands,
    )
