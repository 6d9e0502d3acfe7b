"""The base class of layers, and functions for calls.

A `Layer` holds the constant arguments of one layer of a model, and is made once. A call is a tuple of a
`Layer` and of tensors with one row per token. Each op's `contract.py` defines both classes for its op.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

CallT = TypeVar("CallT", bound=tuple[Any, ...])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Layer:
    """The constant arguments of a layer: pools, weights, options.

    Two layers are equal only if they are the same object. A layer caches results about its tensors, so these
    must stay where they are; after moving one, make a new layer.

    Attributes:
        checked: The forms (dtypes, shapes and so on) of this layer's calls that have passed the contract's
            check.
        kept: Data that backends cache for this layer, each under a key of its own.
    """

    checked: set[object] = field(default_factory=set, init=False)
    kept: dict[Any, Any] = field(default_factory=dict, init=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is a different layer, with empty caches."""
        return _remake, (type(self), {one.name: getattr(self, one.name) for one in fields(self) if one.init})


def _remake(kind: type[Layer], values: dict[str, Any]) -> Layer:
    return kind(**values)


make_call = tuple.__new__
"""Makes a call from its class and a tuple of all its fields, in half the time that the class takes."""


def take_rows(call: CallT, rows: slice) -> CallT:
    """The given rows of a call, as views."""
    layer, *tensors = call
    return make_call(type(call), (layer, *[tensor if tensor is None else tensor[rows] for tensor in tensors]))
