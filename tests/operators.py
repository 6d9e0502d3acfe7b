"""Shortcuts for the operators of Triton's interpreter, and for its functions `load`, `where` and `dot`.

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


def _divide_ints(left: Any, right: Any) -> Any:
    """Rounds toward zero, as Triton does."""
    return (left - np.fmod(left, right)) // right


FUNCTIONS: dict[str, Operator] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.divide,
    "floordiv": _divide_ints,
    "rshift": np.right_shift,
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
INTS = {"int32", "int64"}
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

The key of `__getitem__` is the tensor's type and, for each index, whether it is None. The key of a function
holds the types of its arguments.
"""


class Operators:
    """Makes the shortcuts for the methods of Triton's tensors."""

    def __init__(self, core: Any, handle: Any, load: Operator) -> None:
        self._tensor, self._constexpr, self._handle = core.tensor, core.constexpr, handle
        self._load_data = load

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

    def find_function(self, name: str, original: Operator) -> Operator | None:
        """The shortcut for a function such as `load`, or None."""
        make = {"load": self._load, "where": self._where, "dot": self._dot}.get(name)
        return None if make is None else make(original, KNOWN.setdefault(name, {}))

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

    def _load(self, original: Operator, known: dict[Any, _Result | None]) -> Operator:
        tensor, make, load_data = self._tensor, self._make, self._load_data
        filled: dict[Any, Any] = {}

        def fill(shape: tuple[int, ...], value: Any, dtype: Any) -> Any:
            key = shape, value, dtype
            if key not in filled:
                filled[key] = np.full(shape, value, dtype)
            return filled[key]

        def read(pointer: Any, mask: Any, dtype: Any) -> Any:
            places = pointer.handle.data
            shape = places.shape
            is_read = fill(shape, True, np.bool_) if mask is None else mask.handle.data
            if is_read.shape != shape:
                is_read = np.broadcast_to(is_read, shape)
            return load_data(places, is_read, fill(shape, 0, dtype), dtype)

        def load(pointer: Any, mask: Any = None, other: Any = None, **kwargs: Any) -> Any:
            is_zero = other is None or (type(other) in (int, float) and other == 0)
            if type(pointer) is not tensor or not is_zero or (mask is not None and type(mask) is not tensor):
                return original(pointer, mask, other, **kwargs)
            key = id(pointer.type), None if mask is None else id(mask.type), type(other)
            if key not in known:
                expected = original(pointer, mask, other, **kwargs)
                known[key] = None
                data = expected.handle.data
                if expected.dtype.name != "int1" and data.shape == pointer.handle.data.shape:
                    types = pointer.type, None if mask is None else mask.type
                    found = read(pointer, mask, data.dtype)
                    known[key] = _compare(found, expected, load_data, types)
                return expected
            result = known[key]
            if result is None:
                return original(pointer, mask, other, **kwargs)
            return make(read(pointer, mask, result.numpy), result)

        return load

    def _where(self, original: Operator, known: dict[Any, _Result | None]) -> Operator:
        tensor, make = self._tensor, self._make

        def where(condition: Any, x: Any, y: Any, **kwargs: Any) -> Any:
            if type(condition) is not tensor or condition.dtype.name != "int1":
                return original(condition, x, y, **kwargs)
            values = [each.handle.data if type(each) is tensor else each for each in (x, y)]
            types = [each.type if type(each) is tensor else type(each) for each in (x, y)]
            key = id(condition.type), id(types[0]), id(types[1])
            if key not in known:
                expected = original(condition, x, y, **kwargs)
                known[key] = None
                if _is_one_type(*types):
                    data = np.where(condition.handle.data, *values)
                    known[key] = _compare(data, expected, np.where, (condition.type, types))
                return expected
            result = known[key]
            if result is None:
                return original(condition, x, y, **kwargs)
            return make(np.where(condition.handle.data, *values), result)

        return where

    def _dot(self, original: Operator, known: dict[Any, _Result | None]) -> Operator:
        make = self._make

        def multiply(a: Any, b: Any, acc: Any) -> Any:
            product = np.matmul(a.handle.data, b.handle.data)
            return product + (np.float32(0) if acc is None else acc.handle.data)

        def dot(a: Any, b: Any, acc: Any = None, **kwargs: Any) -> Any:
            given = [each for each in (a, b, acc) if each is not None]
            if any(each.dtype.name != "fp32" for each in given) or kwargs.get("out_dtype") is not None:
                return original(a, b, acc, **kwargs)
            key = tuple([id(each.type) for each in given])
            if key not in known:
                expected = original(a, b, acc, **kwargs)
                types = [each.type for each in given]
                known[key] = _compare(multiply(a, b, acc), expected, np.matmul, types)
                return expected
            result = known[key]
            return original(a, b, acc, **kwargs) if result is None else make(multiply(a, b, acc), result)

        return dot


def _is_one_type(left: Any, right: Any) -> bool:
    """Whether a choice between values of two types, of tensors or of Python numbers, needs no conversion."""
    if isinstance(left, type) and isinstance(right, type):
        return False
    if isinstance(left, type) or isinstance(right, type):
        number, of_tensor = (left, right) if isinstance(left, type) else (right, left)
        return number in NUMBERS.get(of_tensor.scalar.name, ()) and of_tensor.scalar.is_floating()
    return bool(left.scalar.name == right.scalar.name and not left.scalar.is_ptr())


def _reversed(function: Operator, left: Any, right: Any) -> Any:
    return function(right, left)


def _choose(function: Operator, left: Any, right: Any) -> Operator | None:
    """The function to call on a value of type `left` and a value or number of type `right`, or None."""
    if left.is_ptr():
        if function is not np.add:
            return None
        size = max(1, left.element_ty.primitive_bitwidth // 8)
        if right is int:
            return partial(_move_by_number, size)
        return partial(_move, size) if not isinstance(right, type) and right.name in INTS else None
    if isinstance(right, type):
        return function if right in NUMBERS.get(left.name, ()) else None
    is_served = left.name in NUMBERS or (left.name == "int1" and function in LOGIC)
    return function if is_served and (left.name == right.name or {left.name, right.name} == INTS) else None


def _move(size: int, pointers: Any, offsets: Any) -> Any:
    return pointers + size * offsets.astype(np.uint64)


def _move_by_number(size: int, pointers: Any, offset: int) -> Any:
    return pointers + np.uint64(size * offset % 2**64)


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
