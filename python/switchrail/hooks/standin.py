"""Hooks on callables without Python code, such as C functions: a stand-in takes the object's place.

Such an object has no code to swap. A stand-in has the object's attributes, and calls the object through a
function that can be hooked. Objects that refer to the original are changed to refer to the stand-in.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final

from switchrail.checks import shown
from switchrail.errors import HookError
from switchrail.hooks.attributes import refuse_immutable
from switchrail.hooks.holders import Hidden, replace_held
from switchrail.hooks.hook import name_of, nature_of
from switchrail.hooks.lock import warnings
from switchrail.hooks.parameters import CALLEE, Parameters
from switchrail.hooks.site import Function, Site, known, shared
from switchrail.hooks.trampoline import forwarder


class StandIn(Hidden):
    """Has the attributes of an object, and calls the object through hooks.

    Hooks also run for calls of a subscript's result, as in `kernel[grid](...)`.
    """

    __slots__ = ("__weakref__", "_switchrail_function", "_switchrail_original")

    _switchrail_function: FunctionType
    _switchrail_original: Any

    def __init__(self, function: FunctionType, original: Any) -> None:
        object.__setattr__(self, "_switchrail_function", function)
        object.__setattr__(self, "_switchrail_original", original)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Calls the object through its hooks."""
        return self._switchrail_function(self._switchrail_original, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._switchrail_original, name)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._switchrail_original)

    @property
    def __doc__(self) -> Any:  # type: ignore[override]
        return self._switchrail_original.__doc__

    @property
    def __module__(self) -> Any:  # type: ignore[override]
        return self._switchrail_original.__module__

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        return self._switchrail_original.__dict__

    @property
    def __signature__(self) -> inspect.Signature:
        try:
            return inspect.signature(self._switchrail_original)
        except (TypeError, ValueError) as error:
            raise AttributeError(str(error)) from None

    def __eq__(self, other: object) -> bool:
        if issubclass(type(other), StandIn):
            other = object.__getattribute__(other, "_switchrail_original")
        return bool(self._switchrail_original == other)

    def __hash__(self) -> int:
        return hash(self._switchrail_original)


# Python looks special methods up on the class. So a stand-in's class has the special methods of the object's
# class, except for these.
_KEPT: Final = frozenset(vars(StandIn)) | {
    "__class_getitem__",
    "__del__",
    "__getattribute__",
    "__init__",
    "__init_subclass__",
    "__ne__",
    "__new__",
    "__subclasshook__",
}


def _forwarded(name: str) -> Callable[..., Any]:
    def forward(self: StandIn, *args: Any) -> Any:
        return getattr(type(self._switchrail_original), name)(self._switchrail_original, *args)

    return forward


def _subscripted(self: StandIn, key: Any) -> Any:
    found = type(self._switchrail_original).__getitem__(self._switchrail_original, key)
    return partial(self._switchrail_function, found) if callable(found) else found


def _bound(self: StandIn, instance: Any, owner: Any = None) -> Any:
    return self if instance is None else MethodType(self, instance)


def _class_for(cls: type) -> type[StandIn]:
    # Without these two entries, `type` would set both attributes and so hide the properties of `StandIn`.
    namespace: dict[str, Any] = {name: vars(StandIn)[name] for name in ("__module__", "__doc__")}
    namespace["__slots__"] = ()
    for name in dir(cls):
        if name[:2] == name[-2:] == "__" and name not in _KEPT and callable(getattr(cls, name)):
            namespace[name] = _forwarded(name)
    if hasattr(cls, "__getitem__"):
        namespace["__getitem__"] = _subscripted
    if hasattr(cls, "__get__"):
        namespace["__get__"] = _bound
    return type("StandIn", (StandIn,), namespace)


class Replaced(Hidden):
    """A `Placement` that replaces an object by a stand-in in its holders, and later puts the object back.

    Attributes:
        original: The object.
        unreached: Descriptions of the holders that could not be updated.
    """

    __slots__ = ("_name", "_owner", "_placed", "_stand_in", "original", "unreached")

    original: Any
    _name: str
    _owner: tuple[Any, str] | None
    unreached: tuple[str, ...]

    def __init__(self, original: Any, stand_in: StandIn, owner: tuple[Any, str] | None) -> None:
        self.original, self._name = original, name_of(original)
        self._stand_in, self._owner = stand_in, owner
        self._placed = False
        self.unreached = ()

    def put(self) -> None:
        """Updates each holder that can be found; `unreached` lists those that can't be updated.

        Raises:
            HookError: No holder was updated, or the holder that the dotted path names refuses.
        """
        if self._placed:
            return
        self._placed = True  # set before `put` is complete, so that `take` also undoes a partial `put`
        count, unreached = replace_held(self.original, self._stand_in)
        owner: Any
        owner, name = self._owner or (None, "")
        if getattr(owner, name, self) is self.original:
            try:
                setattr(owner, name, self._stand_in)
            except (AttributeError, TypeError) as error:
                problem = f"{self._name} can't be replaced as an attribute of {shown(owner, 80)}: {error}"
                raise HookError(problem, target=self._name) from None
            count += 1
        if not count:
            raise HookError(
                f"{self._name} has no Python code, and no object that refers to it could be changed; "
                f"found: {', '.join(unreached) or 'none'}",
                target=self._name,
            )
        self.unreached = tuple(unreached)

    def take(self) -> None:
        """Puts the object back, also into objects that got a reference to the stand-in meanwhile."""
        if not self._placed:
            return
        self._placed = False
        for holder in replace_held(self._stand_in, self.original)[1]:
            warnings.append(f"{holder} keeps the stand-in for {self._name}, which has no hooks")
        self.unreached = ()


def original_of(found: Any) -> Any:
    """The object that a stand-in replaces; any other object unchanged."""
    if issubclass(type(found), StandIn):
        return object.__getattribute__(found, "_switchrail_original")
    return found


def site_of(found: Any, owner: tuple[Any, str] | None, target: str) -> Site:
    """The site of a callable without Python code.

    Args:
        found: The object.
        owner: The object and the name of its attribute that is `found`; None if unknown.
        target: The target's name for messages.

    Raises:
        HookError: The object can't be hooked, or is not callable.
    """
    if not callable(found):
        raise not_callable(found, target)
    found = original_of(found)
    # Each access to an instance's method creates a new bound method, so no stand-in could replace it.
    if isinstance(found, MethodType) and owner and found is not original_of(getattr(*owner, None)):
        raise of_one_instance(found, target)
    of = getattr(found, "__objclass__", None) or getattr(found, "__self__", None)
    if isinstance(of, type):
        refuse_immutable(of, target)
    key = id(found), ""
    site = known(key)
    if site is None:
        function, stand_in = stand_in_for(found)
        placement = Replaced(found, stand_in, owner)
        site = shared(key, Function(function, placement, Parameters.told_by(found)))
    return site


def of_one_instance(method: MethodType, target: str) -> HookError:
    """The error for a bound method as target."""
    return HookError(
        f"the target {target} is a method of one instance; valid: {name_of(method.__func__)!r}, which every "
        "instance shares",
        target=target,
    )


def not_callable(found: Any, target: str) -> HookError:
    """The error for a target that can't be called."""
    within = [name for name in ("func", "fset", "fdel") if callable(getattr(found, name, None))]
    valid = " or ".join(f"its {name}" for name in within) or "something that can be called, or a property"
    what = f"of type {type(found).__qualname__}"
    if isinstance(found, property):
        what = "a property without a getter"
    return HookError(f"the target {target} is {what}; valid: {valid}", target=target)


def stand_in_for(original: Any) -> tuple[FunctionType, StandIn]:
    """Creates the function that carries an object's hooks, and the stand-in that calls this function."""
    function = _function_for(original)
    return function, _class_for(type(original))(function, original)


_FLAGS: Final = {
    "plain": 0,
    "coroutine": inspect.CO_COROUTINE,
    "generator": inspect.CO_GENERATOR,
    "async generator": inspect.CO_ASYNC_GENERATOR,
}


def _function_for(original: Any) -> FunctionType:
    def function(__switchrail_callee: Any, /, *args: Any, **kwargs: Any) -> Any:
        return __switchrail_callee(*args, **kwargs)

    code = function.__code__.replace(co_flags=function.__code__.co_flags | _FLAGS[nature_of(original)])
    parameters = Parameters.of(code)
    code = forwarder(code, parameters, parameters.call(CALLEE))
    made = FunctionType(code, {"__name__": __name__, "__builtins__": __builtins__})
    named: Any = original if hasattr(original, "__qualname__") else type(original)
    made.__module__ = getattr(named, "__module__", None) or "builtins"
    made.__qualname__ = named.__qualname__
    made.__name__ = named.__name__
    return made
