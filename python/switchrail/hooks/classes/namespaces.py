"""The attributes of classes, except attributes that hooks have set."""

from __future__ import annotations

from dataclasses import dataclass
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final

from switchrail.hooks.attributes import ABSENT, attributes_of, inside
from switchrail.hooks.holders import Namespace
from switchrail.hooks.lock import change_lock

# Attributes that belong to the class object itself, and are left out of its namespace.
_LEFT_OUT: Final = frozenset(
    {"__dict__", "__weakref__", "__module__", "__name__", "__qualname__", "__slots__", "_abc_impl"}
    | {"__firstlineno__", "__static_attributes__", "__slotnames__"}
    | {"__orig_bases__", "__parameters__", "__type_params__"}  # describe the bases, which don't change
)


@dataclass(frozen=True)
class Replacement:
    """The replacement of a class."""

    by: type
    """The replacing class."""
    own: Namespace
    """The replaced class's original namespace."""
    put: Namespace
    """The namespace that was set on the replaced class."""


replaced: Final[dict[type, Replacement]] = {}
"""The currently replaced classes."""


def namespace_of(cls: type) -> dict[str, Any]:
    """A class's attributes, except those that hooks have set.

    Leaves out the descriptors of `__slots__` and `__dict__`, and the names in `_LEFT_OUT`.
    """
    put = attributes_of(cls)
    return {
        name: value
        for name, value in vars(cls).copy().items()
        if name not in _LEFT_OUT
        and type(value) not in (GetSetDescriptorType, MemberDescriptorType)
        and value is not put.get(name, ABSENT)
    }


def original_namespace(cls: type) -> dict[str, Any]:
    """Like `namespace_of`, but of a class as it was before its replacement."""
    now = replaced.get(cls)
    return namespace_of(cls) if now is None else now.own


def own_namespace(cls: type) -> dict[str, Any]:
    """The class's own attributes, except those that hooks have set.

    A replaced class has its original attributes and, under other names, its present ones, except attributes
    of the replacing class that shadow an inherited attribute. So a dotted path means the same function with
    and without hooks.
    """
    with change_lock:
        # These three values are read before other code runs: a finalizer that runs in this thread can change
        # hooks although the thread holds the lock.
        put, namespace, now = attributes_of(cls), vars(cls).copy(), replaced.get(cls)
    present = {name: value for name, value in namespace.items() if value is not put.get(name, ABSENT)}
    if now is None:
        return present
    inherited = {name for base in cls.__mro__[1:] for name in list(vars(base))}
    kept = {
        name: value
        for name, value in present.items()
        if name not in inherited or value is not now.put.get(name, ABSENT)
    }
    return {**kept, **now.own}


def extends(by: type, cls: type) -> bool:
    """Whether `by`, which replaces `cls`, is its direct subclass; then `cls` keeps methods `by` lacks."""
    return cls in by.__bases__


def function_of(found: Any) -> FunctionType | None:
    """The function inside a method, property or similar object; None if the object contains no function."""
    inner = inside(found)
    return inner if type(inner) is FunctionType else None
