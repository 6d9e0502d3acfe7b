"""Hooks on what is not imported yet, or is imported again.

A finder in front of the others lets every module of a watched name be loaded as it would be, and puts its
hooks on it before the import returns to anybody.
"""

from __future__ import annotations

import importlib.abc
import logging
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from switchrail.errors import HookError, OrderError
from switchrail.forks import lock_across_forks
from switchrail.hooks import chain
from switchrail.hooks.hook import Hook
from switchrail.hooks.target import modules_of, resolve

_log: Final = logging.getLogger(__name__)


def watch(hooks: Sequence[Hook]) -> None:
    """Has the modules of these hooks' dotted paths looked at when they are imported, and imported again."""
    with _lock:
        for hook in hooks:
            _watched.update(modules_of(hook.path or ""))
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)


def attach(hooks: Sequence[Hook], module: str | None = None) -> None:
    """Puts hooks on what their dotted paths lead to by now; reports what can't be.

    Raises:
        HookError: It can't be, and the hook is strict.
        OrderError: So are constraints that form a cycle.
    """
    for hook in hooks:
        try:
            site = resolve(hook.path, done=module)
            if site is None:
                continue
            problem = site.problem_of(hook)
            if problem is not None:
                raise hook.refusal(problem)
            chain.change(attach={hook: site}, strict=hook.strict)
        except (HookError, OrderError) as error:
            if module is None:  # said when it was prepared
                continue
            if hook.strict:
                raise
            _log.warning("%r is not in force in %s: %s", hook, module, error)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in _watched or fullname in _asking():
            return None
        _asking().add(fullname)
        try:
            for finder in tuple(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                if finder is self or find is None:
                    continue
                spec: ModuleSpec | None = find(fullname, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        spec.loader = _Loader(spec.loader)
                    return spec
        finally:
            _asking().discard(fullname)
        return None


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        name = module.__name__ if spec is None else spec.name
        prefix = f"{name}."
        attach([hook for hook in chain.added() if (hook.path or "").startswith(prefix)], name)


_lock: Final = lock_across_forks()
_watched: Final[set[str]] = set()
_finder: Final = _Finder()
_local: Final = threading.local()


def _asking() -> set[str]:
    """The modules that this thread is asking the other finders for."""
    if not hasattr(_local, "names"):
        _local.names = set()
    names: set[str] = _local.names
    return names
