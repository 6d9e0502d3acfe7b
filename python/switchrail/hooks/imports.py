"""Attaches hooks to modules when these are imported, or imported again.

A finder is put first in `sys.meta_path`. For a watched module it asks the other finders for the spec, and
wraps the spec's loader. So the hooks are attached right after the module's code has run, before any import of
the module returns.
"""

from __future__ import annotations

import importlib.abc
import sys
import threading
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from switchrail.forks import lock_across_forks
from switchrail.hooks import waiting
from switchrail.hooks.target import modules_of


def watch(path: str | None) -> None:
    """Makes imports of all modules in a dotted path attach the hooks on that path."""
    with _lock:
        _watched.update(modules_of(path or ""))
        if sys.meta_path[:1] != [_finder]:
            _come_first()


def _come_first() -> None:
    """Moves the finder to the front without removing it, since another thread may be importing."""
    sys.meta_path.insert(0, _finder)
    for i in range(len(sys.meta_path) - 1, 0, -1):
        if sys.meta_path[i] is _finder:
            del sys.meta_path[i]


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in _watched or fullname in _asking.names:
            return None
        _asking.names.add(fullname)
        try:
            spec = self._found_by_others(fullname, path, target)
        finally:
            _asking.names.discard(fullname)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader)
        return spec

    def _found_by_others(self, *module: Any) -> ModuleSpec | None:
        for finder in tuple(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is not self and find is not None:
                spec: ModuleSpec | None = find(*module)
                if spec is not None:
                    return spec
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
        waiting.executed(module.__name__ if spec is None else spec.name)


_lock: Final = lock_across_forks()
_watched: Final[set[str]] = set()
_finder: Final = _Finder()


class _Asking(threading.local):
    """The modules for which this thread is currently querying the other finders."""

    def __init__(self) -> None:
        self.names: set[str] = set()


_asking: Final = _Asking()
