"""Finds calls that bypass hooks: through caches, compiled source, or references to an unhooked object."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator
from types import FunctionType
from typing import Any, Final

from switchrail import garbage
from switchrail.hooks.hook import name_of
from switchrail.hooks.site import Function, Site
from switchrail.hooks.standin import Replaced

_CACHE: Final = type(functools.lru_cache(lambda: None))

# Packages that compile functions from source, and the attribute in which their objects keep the function.
_COMPILERS: Final = {"triton": "fn", "numba": "py_func"}


def nearby(site: Site) -> tuple[str, ...]:
    """Describes calls that bypass a site's hooks; examines only the site's module and class."""
    if not isinstance(site, Function):
        return ()
    function = site.function
    namespaces: list[Any] = [function.__globals__]
    owner: Any = sys.modules.get(function.__module__ or "")
    for part in function.__qualname__.split(".")[:-1]:
        owner = getattr(owner, "__dict__", {}).get(part)  # `getattr` could import modules
    if isinstance(owner, type):
        namespaces.append(vars(owner))
    return _notes(site, (value for namespace in namespaces for value in [*namespace.values()]))


def everywhere(site: Site) -> tuple[str, ...]:
    """Like `nearby`, but examines all objects that the garbage collector knows."""
    if not isinstance(site, Function):
        return ()
    holders = garbage.referrers(site.function)
    holders += garbage.referrers(*(holder for holder in holders if type(holder) is dict))
    notes = _notes(site, holders)
    holders.clear()  # breaks a reference cycle: frames in the list refer to the list
    return notes


def _notes(site: Function, objects: Iterable[Any]) -> tuple[str, ...]:
    found = [_note(site.function, each) for each in objects]
    notes = dict.fromkeys(note for note in found if note is not None)
    return (*notes, *_of_torch(site.function), *_of_stand_in(site))


def _note(function: FunctionType, each: Any) -> str | None:
    cls = type(each)
    if cls is _CACHE:
        if getattr(each, "__wrapped__", None) is function and each.cache_parameters()["maxsize"] != 0:
            return f"calls that the lru_cache of {name_of(function)} answers bypass the hook"
        return None
    compiler = str(cls.__module__).partition(".")[0]
    attribute = _COMPILERS.get(compiler)
    if attribute is not None and getattr(each, attribute, None) is function:
        return f"{compiler} has compiled {name_of(function)} from its source, bypassing the hook"
    return None


def _of_torch(function: FunctionType) -> Iterator[str]:
    state = sys.modules.get("torch.jit._state")
    if state is not None and state._try_get_jit_cached_function(function) is not None:
        yield f"torch.jit has compiled {name_of(function)} from its source, bypassing the hook"


def _of_stand_in(site: Function) -> Iterator[str]:
    if isinstance(site.placement, Replaced):
        compiler = type(site.placement.original).__module__.partition(".")[0]
        if compiler in _COMPILERS:
            yield f"{compiler} compiles callers together with the target's source, bypassing the hook"
        for holder in site.placement.unreached:
            yield f"{holder} refers to the unhooked object"
