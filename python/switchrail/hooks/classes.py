"""Replacing a class in place: the same class object takes over another's namespace.

Instances, subclasses, `isinstance` and pickles of the class hold, because it stays the same object.

All names change within one call of a C function that runs no Python code. So under the interpreter lock each
thread sees the whole of one class or of the other, at any moment.
"""

from __future__ import annotations

import dis
import gc
import sys
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from types import CellType, CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final

from switchrail.errors import HookError
from switchrail.hooks.holders import Namespace
from switchrail.hooks.hook import Hook, name_of
from switchrail.hooks.inherited import attributes_of, inside, is_immutable
from switchrail.hooks.lock import change_lock

# What belongs to the class object itself, whatever its namespace.
_KEPT: Final = frozenset(
    {"__dict__", "__weakref__", "__module__", "__name__", "__qualname__", "__slots__", "_abc_impl"}
    | {"__firstlineno__", "__static_attributes__", "__slotnames__"}
    | {"__orig_bases__", "__parameters__", "__type_params__"}  # of its bases, which stay
)

_SUPER: Final = "__switchrail_super"

# What torch.compile calls the rest of a function after a break in its graph, which has other parameters. The
# function itself calls it.
_RESUMED: Final = "torch_dynamo_resume_in_"

_ABSENT: Final = object()


@dataclass(frozen=True)
class Class:
    """A class of this process; what stands there is the replacing class, or None."""

    cls: type

    @property
    def name(self) -> str:
        """Its module and qualified name."""
        return name_of(self.cls)

    def found(self) -> type | None:
        """The class that has replaced it."""
        return _replaced[self.cls].by if self.cls in _replaced else None

    def made(self, own: None, hooks: Sequence[Hook]) -> Any:
        """The first of the replacing classes."""
        by: Any = hooks[0].fn
        functions = _closing_over(by)
        for function in functions:
            if _has_attribute_super(function.__code__):
                problem = f"{name_of(function)} uses an attribute that is called super; valid: another name"
                raise hooks[0].refusal(problem)
        _redirect_super(functions)
        return by

    def install(self, state: type | None, *, hooked: bool) -> None:
        """Gives the class the namespace of another, or its own back."""
        present = Namespace(namespace_of(self.cls))
        before = _replaced.get(self.cls) or _Replaced(self.cls, present, present)
        wanted = before.own
        if state is not None:
            wanted = Namespace({**(before.own if _extends(state, self.cls) else {}), **namespace_of(state)})
            _remember(state, self.cls)
        known = _replaced.get(self.cls)
        try:
            if state is not None:  # before the first call of its methods, which may ask for `super`
                _replaced[self.cls] = _Replaced(state, before.own, wanted)
            self._set(wanted, before.put)
        except BaseException as error:
            self._set(present, namespace_of(self.cls))
            if known is not None:
                _replaced[self.cls] = known
            else:
                _replaced.pop(self.cls, None)
            if isinstance(error, (AttributeError, TypeError)):  # which its metaclass raises
                raise HookError(f"{self.name} can't be changed: {error}", target=self.name) from error
            raise
        if state is None:
            _replaced.pop(self.cls, None)

    def _set(self, wanted: dict[str, Any], put: dict[str, Any]) -> None:
        """Goes from what was put there to what is wanted; what others have set or deleted since stays so."""
        present = namespace_of(self.cls)
        wanted = {**attributes_of(self.cls), **wanted}
        changed = [
            name
            for name in {**present, **wanted}
            if put.get(name, _ABSENT) is present.get(name, _ABSENT) is not wanted.get(name, _ABSENT)
        ]
        new = {name: wanted[name] for name in changed if name in wanted}
        gone = [name for name in changed if name not in wanted]
        # `present` keeps what goes alive, so no finalizer runs in between.
        setting = map(setattr, repeat(self.cls), new, new.values())
        deque(chain(setting, map(delattr, repeat(self.cls), gone)), maxlen=0)

    def problem_of(self, hook: Hook) -> str | None:
        """Compares the layouts."""
        fn: Any = hook.fn
        if hook.kind != "replace":
            return "the target is a class; valid: replace, or a hook on one of its methods"
        if not isinstance(fn, type):
            return f"the target is a class, and the hook a {type(fn).__qualname__}; valid: a class"
        if is_immutable(self.cls):
            return "the target is a class in C that can't be changed"
        if fn is self.cls:
            return "it is the target itself"
        if type(fn) is not type(self.cls):
            return f"its metaclass is {name_of(type(fn))}; valid: {name_of(type(self.cls))}"
        if fn.__bases__ not in ((self.cls,), self.cls.__bases__):
            return (
                f"its bases are {_names(fn.__bases__)}; "
                f"valid: {_names((self.cls,))}, or {_names(self.cls.__bases__)}"
            )
        inherited: Any = self.cls.__new__
        if "__new__" in vars(fn) and inherited is object.__new__:
            return "it adds __new__, and the target would never get that of object back; valid: __init__"
        if _layout(fn) != _layout(self.cls):
            return "its instances are laid out in another way; valid: the same __slots__"
        return None


def pairs(cls: type, by: Any) -> Iterator[tuple[FunctionType, FunctionType | None]]:
    """The functions that `cls` had before it was replaced, and what `by` has in their place, if anything."""
    own = _replaced[cls].own if cls in _replaced else namespace_of(cls)
    namespace = namespace_of(by)
    inherited = own if _extends(by, cls) else {}
    for name, value in own.items():
        found = namespace.get(name, inherited.get(name))
        for first, second in zip(_functions_of(value), _functions_of(found), strict=True):
            if first is not None and first is not second:
                yield first, second


def own_namespace(cls: type) -> dict[str, Any]:
    """The class's own attributes, without what hooks have put there.

    For a replaced class the original ones, plus later additions that shadow nothing inherited. So a dotted
    path leads to the same place whatever hooks are in force.
    """
    with change_lock:
        # Copies of one moment: a finalizer may change hooks in this thread, the lock notwithstanding.
        put, namespace, replaced = attributes_of(cls), vars(cls).copy(), _replaced.get(cls)
    present = {name: value for name, value in namespace.items() if value is not put.get(name, _ABSENT)}
    if replaced is None:
        return present
    inherited = {name for base in cls.__mro__[1:] for name in list(vars(base))}
    kept = {
        name: value
        for name, value in present.items()
        if name not in inherited or value is not replaced.put.get(name, _ABSENT)
    }
    return {**kept, **replaced.own}


def function_of(found: Any) -> FunctionType | None:
    """The function within a method, a property or the like."""
    inner = inside(found)
    return inner if type(inner) is FunctionType else None


def _functions_of(found: Any) -> tuple[FunctionType | None, ...]:
    rest = (found.fset, found.fdel) if isinstance(found, property) else (None, None)
    return function_of(found), *map(function_of, rest)


def namespace_of(cls: type) -> dict[str, Any]:
    """What a class was given in its body or since, without what the class object and hooks are made of."""
    put = attributes_of(cls)
    return {
        name: value
        for name, value in vars(cls).copy().items()
        if name not in _KEPT
        and type(value) not in (GetSetDescriptorType, MemberDescriptorType)
        and value is not put.get(name, _ABSENT)
    }


def redirected(function: FunctionType, code: CodeType) -> CodeType:
    """The code of a function; of one whose class replaces another, with `super` asked for by another name."""
    if function not in _redirected:
        return code
    renamed = _renamed(code)
    return code if renamed == code else renamed


@dataclass(frozen=True)
class _Replaced:
    by: type
    own: Namespace
    """The namespace from before."""
    put: Namespace
    """The namespace that was given to it."""


_replaced: Final[dict[type, _Replaced]] = {}
_redirected: Final[weakref.WeakSet[FunctionType]] = weakref.WeakSet()

# What each class has ever replaced: a call of one of its methods may outlast that.
_targets: Final[weakref.WeakKeyDictionary[type, tuple[weakref.ref[type], ...]]] = weakref.WeakKeyDictionary()


def _remember(by: type, cls: type) -> None:
    known = [reference for reference in _targets.get(by, ()) if reference() not in (None, cls)]
    _targets[by] = (*known, weakref.ref(cls))


def _extends(by: type, cls: type) -> bool:
    return cls in by.__bases__


def _names(classes: Sequence[type]) -> str:
    return f"({', '.join(name_of(cls) for cls in classes)})"


def _layout(cls: type) -> tuple[Any, ...]:
    slots = [
        name
        for base in cls.__mro__
        for name, value in vars(base).items()
        if type(value) is MemberDescriptorType
    ]
    return cls.__basicsize__, cls.__itemsize__, cls.__dictoffset__, cls.__weakrefoffset__, sorted(slots)


def _redirect_super(functions: Sequence[FunctionType]) -> None:
    """Has the methods of a replacing class ask for `super` by another name.

    Python's own would refuse an instance of the class that is replaced, because that is no instance of `by`.
    """
    for function in functions:
        function.__globals__[_SUPER] = _super
        _redirected.add(function)
        function.__code__ = redirected(function, function.__code__)


def _closing_over(by: type) -> list[FunctionType]:
    """The functions of a class's body that know the class, within whatever they were wrapped."""
    cells = [cell for cell in gc.get_referrers(by) if type(cell) is CellType]
    if not cells:
        return []
    closures = [closure for closure in gc.get_referrers(*cells) if type(closure) is tuple]
    return [
        function
        for function in gc.get_referrers(*closures)
        if type(function) is FunctionType and "__class__" in function.__code__.co_freevars
    ]


def _has_attribute_super(code: CodeType) -> bool:
    return any(
        instruction.argval == "super" and instruction.opname.split("_")[-1] in ("ATTR", "METHOD")
        for instruction in dis.get_instructions(code)
    ) or any(_has_attribute_super(const) for const in code.co_consts if isinstance(const, CodeType))


def _renamed(code: CodeType) -> CodeType:
    return code.replace(
        co_names=tuple(_SUPER if name == "super" else name for name in code.co_names),
        co_consts=tuple(
            _renamed(const) if isinstance(const, CodeType) else const for const in code.co_consts
        ),
    )


def _super(*args: Any) -> Any:
    if not args:
        frame = sys._getframe(1)
        while frame.f_code.co_name.startswith(_RESUMED) and frame.f_back is not None:
            frame = frame.f_back
        args = frame.f_locals["__class__"], frame.f_locals[frame.f_code.co_varnames[0]]
    by, bound = args
    of = bound if isinstance(bound, type) else type(bound)
    for reference in _targets.get(by, ()):
        cls = reference()
        if cls is None or not issubclass(of, cls):
            continue
        replaced = _replaced.get(cls)
        if (replaced is not None and replaced.by is by) or not issubclass(of, by):
            if not _extends(by, cls):
                return super(cls, bound)
            own = namespace_of(cls) if replaced is None else replaced.own
            # Not `_Super(...)`: torch.compile can't trace that, and a break of its graph in `super().name` is
            # an error in torch itself from Python 3.12 on.
            return tuple.__new__(_Super, (cls, bound, own))
    return super(by, bound)


class _Super(tuple[type, Any, "dict[str, Any]"]):
    """What `super()` gives in a class that replaces its base: the base as it was.

    A tuple (class, what is bound, the class's namespace), which has its parts without running Python code:
    compilers look at such objects at any time.
    """

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        # Special methods asked for by name are those of the class that was replaced, not of this one.
        try:
            cls, bound, own = tuple.__iter__(self)
        except ValueError:  # the empty one that torch.compile makes to look at
            return object.__getattribute__(self, name)
        if name not in own:
            return getattr(super(cls, bound), name)
        found = own[name]
        if not hasattr(type(found), "__get__"):
            return found
        if isinstance(bound, type):
            return found.__get__(None, bound)
        return found.__get__(bound, type(bound))
