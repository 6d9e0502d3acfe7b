"""What the calls of all ops have in common: a layer's half, which never changes, and what a call brings.

Each op's `contract.py` has the two halves, beside the interface of its backends. A call is a tuple
of its layer and of tensors with a row a token; it is made anew each time, the layer's half once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

CallT = TypeVar("CallT", bound=tuple[Any, ...])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Layer:
    """What never changes for a layer: pools, weights, options.

    It is compared by identity, so that what was found out about a layer's calls can be kept with it. Its
    tensors stay where they are; whoever moves one makes a new layer.

    Attributes:
        checked: What the contract found right in calls of this layer.
        kept: What backends found out about calls of this layer, each under a key of its own.
    """

    checked: set[object] = field(default_factory=set, init=False)
    kept: dict[Any, Any] = field(default_factory=dict, init=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is another layer, of which nothing is known."""
        return _remake, (type(self), {one.name: getattr(self, one.name) for one in fields(self) if one.init})


def _remake(kind: type[Layer], values: dict[str, Any]) -> Layer:
    return kind(**values)


make_call = tuple.__new__
"""Makes a call of its class and a tuple of all its fields, in half the time that the class itself takes."""


def take_rows(call: CallT, rows: slice) -> CallT:
    """Some rows of a call, as views."""
    layer, *tensors = call
    return make_call(type(call), (layer, *[tensor if tensor is None else tensor[rows] for tensor in tensors]))


__all__ = ["CallT", "Layer", "make_call", "take_rows"]
