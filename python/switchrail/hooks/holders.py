"""Finds the objects that refer to a given object, and makes them refer to another object."""

from __future__ import annotations

from collections import deque
from functools import partial
from types import CellType, FrameType, FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

from switchrail import garbage


class Hidden:
    """Base class of objects that refer to targets and that `replace_held` must not change."""

    __slots__ = ()


class Namespace(dict[str, Any]):
    """A copy of a class's namespace. Unlike the namespace itself, it can be changed like any dict."""


def replace_held(old: Any, new: Any) -> tuple[int, list[str]]:
    """Replaces `old` by `new` in its holders: the objects that refer to it.

    Changes modules, classes, instances, dicts, lists, deques, sets, closures, defaults of functions and
    `functools.partial` objects, if the garbage collector knows them. Local variables of running functions are
    left alone.

    Returns:
        The number of changed holders, and descriptions of the holders that can't be changed.
    """
    changed, unreached = 0, []
    for holder in garbage.referrers(old):
        if isinstance(holder, FrameType) or issubclass(type(holder), Hidden):
            continue
        if _changed(holder, old, new):
            changed += 1
        else:
            unreached.append(f"a {type(holder).__module__}.{type(holder).__qualname__}")
    return changed, unreached


def _changed(holder: Any, old: Any, new: Any) -> bool:
    cls = type(holder)
    if issubclass(cls, dict):
        return _changed_dict(holder, old, new)
    # Other threads may change a holder meanwhile. So a copy is searched, and each item is checked again just
    # before its change.
    if cls is list or cls is deque:
        for i, item in enumerate(list(holder)):
            if item is old and i < len(holder) and holder[i] is old:
                holder[i] = new
        return True
    if cls is set:
        if any(item is old for item in list(holder)):
            holder.discard(old)
            holder.add(new)
        return True
    if cls is CellType:
        if holder.cell_contents is old:
            holder.cell_contents = new
        return True
    if cls is tuple:
        return _changed_tuple(holder, old, new)
    if cls is partial:
        if holder.func is old:
            _set_partial(holder, func=new)
            return True
        return False
    return _changed_instance(holder, old, new)


def _changed_dict(holder: dict[Any, Any], old: Any, new: Any) -> bool:
    names = [key for key, value in dict.copy(holder).items() if value is old]
    owners: list[type] = []
    plain = type(holder) is not Namespace
    if names and plain and "__doc__" in holder and "__spec__" not in holder:  # perhaps a class's namespace
        owners = [
            owner
            for owner in garbage.referrers(holder)
            if isinstance(owner, type) and vars(owner).get(names[0]) is old
        ]
        if not owners and "__name__" not in holder:  # a class in C: its method cache would stay stale
            return False
    for name in names:
        if owners:
            try:
                setattr(owners[0], name, new)
            except (AttributeError, TypeError):  # a class in C, or a metaclass that refuses the change
                return False
        elif dict.get(holder, name) is old:
            dict.__setitem__(holder, name, new)
    return bool(names)


def _changed_tuple(holder: tuple[Any, ...], old: Any, new: Any) -> bool:
    """Replaces `old` in a tuple of defaults or of a partial's arguments, in all objects that use it."""
    put = tuple(new if item is old else item for item in holder)
    done = False
    for owner in garbage.referrers(holder):
        if type(owner) is FunctionType and owner.__defaults__ is holder:
            owner.__defaults__ = put
            done = True
        elif type(owner) is partial and owner.args is holder:
            _set_partial(owner, args=put)
            done = True
    return done


def _set_partial(holder: partial[Any], **parts: Any) -> None:
    state = {"func": holder.func, "args": holder.args, "keywords": holder.keywords, **parts}
    # `__setstate__` exists for unpickling. There is no other way to change a partial.
    holder.__setstate__((state["func"], state["args"], state["keywords"], vars(holder)))  # type: ignore[attr-defined]


def _changed_instance(holder: Any, old: Any, new: Any) -> bool:
    done = False
    for base in type(holder).__mro__:
        for name, member in vars(base).items():
            if type(member) is GetSetDescriptorType and name == "__dict__":
                own = member.__get__(holder)
                done |= type(own) is dict and _changed_dict(own, old, new)
            elif type(member) is MemberDescriptorType:
                try:
                    if member.__get__(holder) is old:
                        member.__set__(holder, new)
                        done = True
                except (AttributeError, TypeError):  # an empty or read-only slot
                    continue
    return done
