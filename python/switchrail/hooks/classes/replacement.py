"""Classes as sites: a `replace` hook installs another class's namespace.

All attributes change within one call of a C function, which runs no Python code unless the metaclass does.
So, with the global interpreter lock, each thread sees either all of the old class or all of the new one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from types import FunctionType, MemberDescriptorType
from typing import Any, ClassVar

from switchrail.errors import HookError
from switchrail.hooks.attributes import ABSENT, Attribute, attributes_of, is_immutable
from switchrail.hooks.classes.namespaces import (
    Replacement,
    extends,
    function_of,
    namespace_of,
    original_namespace,
    replaced,
)
from switchrail.hooks.classes.supers import remember, replacing_super
from switchrail.hooks.holders import Namespace
from switchrail.hooks.hook import Hook, name_of
from switchrail.hooks.redirect import closing_over, has_attribute_super, redirect
from switchrail.hooks.site import Function, Site


@dataclass(frozen=True)
class Class(Site):
    """A class as a site. Its state is the class that replaces it, or None."""

    moves_hooks: ClassVar[bool] = True

    cls: type

    @property
    def name(self) -> str:
        """The module and qualified name of the class."""
        return name_of(self.cls)

    def found(self) -> type | None:
        """The class that currently replaces this one, or None."""
        return replaced[self.cls].by if self.cls in replaced else None

    def made(self, own: None, hooks: Sequence[Hook]) -> Any:
        """The class that the first hook puts in place of this one. Redirects `super` in its methods."""
        by: Any = hooks[0].fn
        functions = closing_over(by)
        for function in functions:
            if has_attribute_super(function.__code__):
                problem = f"{name_of(function)} uses an attribute named super; valid: another name"
                raise hooks[0].refusal(problem)
        redirect(functions, replacing_super)
        return by

    def install(self, state: type | None, *, hooked: bool) -> None:
        """Installs the namespace of the class `state`, or for None the class's own namespace."""
        present = Namespace(namespace_of(self.cls))
        known = replaced.get(self.cls)
        before = known or Replacement(self.cls, present, present)
        try:
            if state is None:
                self._set(before.own, before.put)
                replaced.pop(self.cls, None)
            else:
                inherited = before.own if extends(state, self.cls) else {}
                wanted = Namespace({**inherited, **namespace_of(state)})
                remember(state, self.cls)
                # Set before any method of `state` runs, since methods may use `super`.
                replaced[self.cls] = Replacement(state, before.own, wanted)
                self._set(wanted, before.put)
        except BaseException as error:
            self._set(present, namespace_of(self.cls))
            if known is None:
                replaced.pop(self.cls, None)
            else:
                replaced[self.cls] = known
            if isinstance(error, (AttributeError, TypeError)):  # from the class or its metaclass
                raise HookError(f"{self.name} can't be changed: {error}", target=self.name) from error
            raise

    def _set(self, wanted: dict[str, Any], put: dict[str, Any]) -> None:
        """Replaces the attributes `put` by `wanted`, except attributes that other code has changed."""
        present = namespace_of(self.cls)
        wanted = {**attributes_of(self.cls), **wanted}
        changed = [
            name
            for name in {**present, **wanted}
            if put.get(name, ABSENT) is present.get(name, ABSENT) is not wanted.get(name, ABSENT)
        ]
        new = {name: wanted[name] for name in changed if name in wanted}
        gone = [name for name in changed if name not in wanted]
        # `present` keeps removed attributes alive, so no finalizer runs in this block.
        setting = map(setattr, repeat(self.cls), new, new.values())
        deque(chain(setting, map(delattr, repeat(self.cls), gone)), maxlen=0)

    def moves(self, hook: Hook, sites: Iterable[Site]) -> Iterator[tuple[Site, Site | None]]:
        """Moves hooks from the class's own functions to the functions that replace them."""
        for old, new in _pairs(self.cls, hook.fn):
            yield Function(old), None if new is None else Function(new)
        for site in sites:
            at = site.placement if isinstance(site, Function) else None
            # Hooks on an inherited attribute move to the replacing class's function of that name, if any.
            if isinstance(at, Attribute) and at.owner is self.cls:
                replacing: Any = hook.fn
                function = function_of(namespace_of(replacing).get(at.name))
                if function is not None:
                    yield site, Function(function)

    def problem_of(self, hook: Hook, wanted: Mapping[Site, Sequence[Hook]] | None = None) -> str | None:
        """The reason why the hook's class can't replace this one; None if it can."""
        return self._misfit_of(hook) or self._conflict_of(hook, wanted or {})

    def _misfit_of(self, hook: Hook) -> str | None:
        """Why the hook's class doesn't fit: its kind, bases, metaclass or memory layout; None if it fits."""
        fn: Any = hook.fn
        if hook.kind != "replace":
            return "the target is a class; valid: replace, or a hook on one of its methods"
        if not isinstance(fn, type):
            return f"the target is a class, and the hook a {type(fn).__qualname__}; valid: a class"
        if is_immutable(self.cls):
            return "the target is a class implemented in C, which can't be changed"
        if fn is self.cls:
            return "the hook is the target itself"
        if type(fn) is not type(self.cls):
            return f"its metaclass is {name_of(type(fn))}; valid: {name_of(type(self.cls))}"
        if fn.__bases__ not in ((self.cls,), self.cls.__bases__):
            return (
                f"its bases are {_names(fn.__bases__)}; "
                f"valid: {_names((self.cls,))}, or {_names(self.cls.__bases__)}"
            )
        inherited: Any = self.cls.__new__
        if "__new__" in vars(fn) and inherited is object.__new__:
            return "it adds __new__, which could not be removed from the target again; valid: __init__"
        if _layout(fn) != _layout(self.cls):
            return "its instances have another memory layout; valid: the same __slots__"
        return None

    def _conflict_of(self, hook: Hook, wanted: Mapping[Site, Sequence[Hook]]) -> str | None:
        """Why another replacement excludes this one; None if none does.

        A class that takes part in two replacements would mix their hooks.
        """
        for site, others in wanted.items():
            if not isinstance(site, Class) or hook in others:  # the same hook: its module was imported again
                continue
            for other in others:
                if other.fn is hook.fn:
                    return f"the class already replaces {site.name}; valid: a separate class for each target"
                if other.fn is self.cls:
                    return f"the target replaces {site.name}; valid: to replace {site.name}"
                if site.cls is hook.fn:
                    return f"the class itself is replaced by {other.name}; valid: {other.name}"
        return None


def _pairs(cls: type, by: Any) -> Iterator[tuple[FunctionType, FunctionType | None]]:
    """The original functions of `cls`, each with the function of `by` that replaces it, or None."""
    own = original_namespace(cls)
    namespace = namespace_of(by)
    inherited = own if extends(by, cls) else {}
    for name, value in own.items():
        found = namespace.get(name, inherited.get(name))
        for first, second in zip(_functions_of(value), _functions_of(found), strict=True):
            if first is not None and first is not second:
                yield first, second


def _functions_of(found: Any) -> tuple[FunctionType | None, ...]:
    rest = (found.fset, found.fdel) if isinstance(found, property) else (None, None)
    return function_of(found), *map(function_of, rest)


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
