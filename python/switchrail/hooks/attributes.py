"""Finds attributes of classes, and sets attributes on classes for hooks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from switchrail.errors import HookError
from switchrail.hooks.hook import name_of

ABSENT: Final = object()
"""Marks a missing attribute."""


def inside(found: Any) -> Any:
    """The function inside a static or class method or a (cached) property; other objects unchanged."""
    if isinstance(found, (staticmethod, classmethod)):
        return found.__func__
    if isinstance(found, property):
        return found.fget
    if isinstance(found, cached_property):
        return found.func
    return found


def raw_after(owner: type, cls: type, name: str) -> Any:
    """The first unbound attribute `name` of the classes after `owner` in the resolution order of `cls`.

    Raises:
        AttributeError: No class after `owner` has the attribute.
    """
    order = cls.__mro__
    for base in order[order.index(owner) + 1 :]:
        found = vars(base).get(name, ABSENT)  # a single lookup, since another thread may delete the attribute
        if found is not ABSENT:
            return found
    raise AttributeError(f"{cls.__qualname__!r} inherits no {name!r}")


def is_immutable(cls: type) -> bool:
    """Whether a class refuses changes of its attributes, like classes written in C."""
    return bool(cls.__flags__ & 1 << 8)  # Py_TPFLAGS_IMMUTABLETYPE


def refuse_immutable(cls: type, target: str) -> None:
    """Refuses a target on an immutable class.

    Raises:
        HookError: The class is immutable.
    """
    if is_immutable(cls):
        raise HookError(
            f"the target {target} belongs to {cls.__qualname__}, a class implemented in C, which can't "
            "be changed; "
            "valid: the same method of a subclass",
            target=target,
        )


_put: Final[dict[tuple[type, str], Any]] = {}


def attributes_of(owner: type) -> dict[str, Any]:
    """The attributes that hooks have put on a class, even if other code has set others of the same names."""
    # A copy, since another thread or a finalizer may change hooks meanwhile.
    return {name: value for (of, name), value in _put.copy().items() if of is owner}


@dataclass(frozen=True)
class Attribute:
    """Keeps an attribute set on a class as long as its function has hooks; implements `site.Placement`."""

    owner: type
    name: str
    value: Any

    def put(self) -> None:
        """Records the attribute for `attributes_of`; sets it if the class itself has none of that name.

        Raises:
            HookError: The class refuses the attribute.
        """
        _put[self.owner, self.name] = self.value
        if self.name not in vars(self.owner):
            try:
                setattr(self.owner, self.name, self.value)
            except (AttributeError, TypeError) as error:  # from the class or its metaclass
                _put.pop((self.owner, self.name))
                name = name_of(self.owner)
                raise HookError(f"{name} can't be changed: {error}", target=f"{name}.{self.name}") from error

    def take(self) -> None:
        """Deletes the attribute, unless other code has replaced it."""
        _put.pop((self.owner, self.name), None)
        if vars(self.owner).get(self.name) is self.value:
            delattr(self.owner, self.name)
