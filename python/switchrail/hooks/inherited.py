"""Hooks on inherited attributes: the subclass gets its own function, which calls the inherited attribute."""

from __future__ import annotations

import builtins
import sys
from functools import cached_property
from types import ClassMethodDescriptorType, FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final

from switchrail.errors import HookError
from switchrail.hooks.attributes import Attribute, inside, raw_after, refuse_immutable
from switchrail.hooks.classes import Class
from switchrail.hooks.parameters import Parameters
from switchrail.hooks.site import Function, Site, known, shared
from switchrail.hooks.standin import not_callable, original_of, stand_in_for
from switchrail.hooks.trampoline import forwarder

_STORAGE: Final = (MemberDescriptorType, GetSetDescriptorType)

# The key, in a forwarding function's globals, of the class and the name that the function was made for.
_MADE_FOR: Final = "__switchrail_made_for"


def made_for(function: FunctionType) -> tuple[type, str] | None:
    """The class and name that a forwarding function was made for; None for any other function."""
    found: tuple[type, str] | None = function.__globals__.get(_MADE_FOR)
    return found


def site_of(owner: type, name: str, target: str) -> Site | None:
    """The site of an inherited attribute in one class; None if the class inherits no such attribute.

    Raises:
        HookError: The attribute can't be hooked.
    """
    try:
        raw = original_of(raw_after(owner, owner, name))
    except AttributeError:
        return None
    if isinstance(raw, type):
        return Class(raw)
    refuse_immutable(owner, repr(target))
    if raw is object.__new__:
        raise HookError(
            f"the target {target!r} is inherited from object, and a hook's __new__ could not be "
            "removed from the class again; valid: __init__",
            target=target,
        )
    is_bound = hasattr(type(raw), "__get__")
    is_stored = type(raw) in _STORAGE or (isinstance(raw, property) and raw.fget is None)
    if not callable(raw) and (is_stored or not is_bound):
        raise not_callable(raw, repr(target))
    key = id(owner), name
    site = known(key)
    if site is None:
        function, value = _forwarding(raw, owner, name) if is_bound else stand_in_for(raw)
        inner = inside(raw)
        takes = None if type(inner) is FunctionType else Parameters.told_by(inner)
        site = shared(key, Function(function, Attribute(owner, name, value), takes))
    return site


def _forwarding(raw: Any, owner: type, name: str) -> tuple[FunctionType, Any]:
    """A function that calls the inherited attribute, and the descriptor that contains this function.

    Each call looks the inherited attribute up anew, as `super()` does.
    """
    kind = type(raw)
    inner = inside(raw)
    has_code = type(inner) is FunctionType
    model: Any = inner if has_code else _any_static if kind is staticmethod else _any
    parameters = Parameters.of(model.__code__)
    if isinstance(raw, staticmethod):
        call = parameters.call(f"__super(__owner, __owner).{name}")
    else:
        named = (*parameters.positional_only, *parameters.positional)
        if not named:  # `*args` begins with the instance
            parameters = Parameters.of(_any.__code__)
            named = parameters.positional_only
        first = named[0]
        if isinstance(raw, property):
            call = f"__super(__owner, {first}).{name}"
        elif isinstance(raw, cached_property):  # otherwise the unhooked result would be cached
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
    if sys.version_info >= (3, 14) and has_code:  # names in annotations may not exist yet
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
    return function, value


def _any(self: Any, /, *args: Any, **kwargs: Any) -> None:
    """The parameters of a method whose own parameters are unknown."""


def _any_static(*args: Any, **kwargs: Any) -> None:
    """The parameters of a static method whose own parameters are unknown."""
