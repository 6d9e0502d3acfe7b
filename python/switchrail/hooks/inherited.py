"""Hooks on inherited attributes: the subclass gets a function of its own, which calls the inherited one."""

from __future__ import annotations

import builtins
import sys
from dataclasses import dataclass
from functools import cached_property
from types import ClassMethodDescriptorType, FunctionType
from typing import Any, Final

from switchrail.errors import HookError
from switchrail.hooks.hook import name_of
from switchrail.hooks.parameters import Parameters
from switchrail.hooks.standin import stand_in_for
from switchrail.hooks.trampoline import forwarder

_ABSENT: Final = object()

# The key in a forwarding function's globals for the class and name that it was made for.
_MADE_FOR: Final = "__switchrail_made_for"


def inside(found: Any) -> Any:
    """The function within a static or class method or a property, cached or not; else the object itself."""
    if isinstance(found, (staticmethod, classmethod)):
        return found.__func__
    if isinstance(found, property):
        return found.fget
    if isinstance(found, cached_property):
        return found.func
    return found


def raw_after(owner: type, cls: type, name: str) -> Any:
    """The attribute, unbound, of the first class after `owner` in the resolution order of `cls` that has it.

    Raises:
        AttributeError: No class after it does.
    """
    order = cls.__mro__
    for base in order[order.index(owner) + 1 :]:
        found = vars(base).get(name, _ABSENT)  # one lookup: another thread may delete it
        if found is not _ABSENT:
            return found
    raise AttributeError(f"{cls.__qualname__!r} inherits no {name!r}")


def is_immutable(cls: type) -> bool:
    """Whether a class refuses changes of its attributes, as classes in C do."""
    return bool(cls.__flags__ & 1 << 8)  # Py_TPFLAGS_IMMUTABLETYPE


_put: Final[dict[tuple[type, str], Any]] = {}


def attributes_of(owner: type) -> dict[str, Any]:
    """The attributes that hooks have put on a class, also those hidden by one of the class's own."""
    # A copy: another thread, or a finalizer, may change hooks meanwhile.
    return {name: value for (of, name), value in _put.copy().items() if of is owner}


@dataclass(frozen=True)
class Attribute:
    """A placement: an attribute that a class has while its function has hooks."""

    owner: type
    name: str
    value: Any

    def put(self) -> None:
        """Sets the attribute, unless the class has one of that name by now.

        Raises:
            HookError: The class refuses.
        """
        _put[self.owner, self.name] = self.value
        if self.name not in vars(self.owner):
            try:
                setattr(self.owner, self.name, self.value)
            except (AttributeError, TypeError) as error:  # which its metaclass raises
                _put.pop((self.owner, self.name))
                name = name_of(self.owner)
                raise HookError(f"{name} can't be changed: {error}", target=f"{name}.{self.name}") from error

    def take(self) -> None:
        """Deletes it, unless somebody else has replaced it."""
        _put.pop((self.owner, self.name), None)
        if vars(self.owner).get(self.name) is self.value:
            delattr(self.owner, self.name)


def made_for(function: FunctionType) -> tuple[type, str] | None:
    """The class and name that a forwarding function was made for; None for any other function."""
    found: tuple[type, str] | None = function.__globals__.get(_MADE_FOR)
    return found


def carrier_of(raw: Any, owner: type, name: str) -> tuple[FunctionType, Attribute]:
    """Makes a function that carries the hooks of an inherited attribute, and its placement."""
    if hasattr(type(raw), "__get__"):
        return _forwarding(raw, owner, name)
    function, stand_in = stand_in_for(raw)
    return function, Attribute(owner, name, stand_in)


def _forwarding(raw: Any, owner: type, name: str) -> tuple[FunctionType, Attribute]:
    """A function that calls the inherited one, looked up in each call as `super()` does."""
    kind = type(raw)
    inner = inside(raw)
    has_code = type(inner) is FunctionType
    model: Any = inner if has_code else _any_static if kind is staticmethod else _any
    parameters = Parameters.of(model.__code__)
    if isinstance(raw, staticmethod):
        call = parameters.call(f"__super(__owner, __owner).{name}")
    else:
        named = (*parameters.positional_only, *parameters.positional)
        if not named:  # the instance is in *args
            parameters = Parameters.of(_any.__code__)
            named = parameters.positional_only
        first = named[0]
        if isinstance(raw, property):
            call = f"__super(__owner, {first}).{name}"
        elif isinstance(raw, cached_property):  # the inherited one would cache the unhooked result
            call = f"__raw_after(__owner, __type({first}), {name!r}).func({first})"
        else:
            call = parameters.without_first().call(f"__super(__owner, {first}).{name}")
    namespace = {
        "__name__": owner.__module__,
        "__builtins__": builtins,
        "__super": super,
        "__owner": owner,
        "__type": type,
        "__raw_after": raw_after,
        _MADE_FOR: (owner, name),
    }
    code = forwarder(model.__code__, parameters, call).replace(co_name=name)
    function = FunctionType(code, namespace, name, model.__defaults__)
    function.__kwdefaults__ = model.__kwdefaults__
    function.__module__, function.__qualname__ = owner.__module__, f"{owner.__qualname__}.{name}"
    function.__doc__ = inner.__doc__
    if sys.version_info >= (3, 14) and has_code:  # where names in them may not be there yet
        function.__annotate__ = inner.__annotate__
    elif has_code:
        function.__annotations__ = dict(inner.__annotations__)
    value: Any = function
    if isinstance(raw, ClassMethodDescriptorType):
        value = classmethod(function)
    elif isinstance(raw, (staticmethod, classmethod)):
        value = kind(function)
    elif isinstance(raw, property):
        value = raw.getter(function)
    elif isinstance(raw, cached_property):
        cached: cached_property[Any] = cached_property(function)
        cached.__set_name__(owner, name)
        value = cached
    return function, Attribute(owner, name, value)


def _any(self: Any, /, *args: Any, **kwargs: Any) -> None:
    """The parameters of a method whose own are unknown."""


def _any_static(*args: Any, **kwargs: Any) -> None:
    """The parameters of a static method whose own are unknown."""
