"""Finding the plugins of the installed distributions, and loading them."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
import traceback
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from switchrail import _core
from switchrail._core import Discovery, Plugin
from switchrail.errors import LoadReentryError, PluginError, RegistrationError
from switchrail.registration import Registry, several

ALLOW_LIST = "SWITCHRAIL_PLUGINS"
"""Environment variable: names of the plugins that may be loaded, separated by commas; not set: all."""

GROUP = "switchrail.plugins"

_log = logging.getLogger("switchrail")


class Loader:
    """The plugins of one runtime: what is installed, and how far each one got.

    One thread loads at a time; others wait for its result. In a forked child nobody is loading.
    """

    def __init__(self, core: _core.Runtime) -> None:
        self._core = core
        self._discovery: Discovery | None = None
        self._plugins: dict[tuple[str, str], Plugin] = {}
        self._order: list[tuple[str, str]] = []
        self.paths: tuple[str, ...] | None = None
        self._lock = threading.Lock()
        self._loading: int | None = None
        _loaders.add(self)

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """What is known of each plugin since the last look."""
        return tuple(self._plugins.values())

    def packages(self) -> dict[str, str]:
        """Installed distributions and their versions, as of the last look; looks if there was none."""
        if self._discovery is None:
            self.discover()
        assert self._discovery is not None
        return self._discovery.packages

    def discover(self, paths: Iterable[str | os.PathLike[str]] | None = None) -> tuple[Plugin, ...]:
        """Looks for installed plugins; imports nothing.

        Args:
            paths: Folders with installed distributions; None: `sys.path`.

        Raises:
            ArgumentError: It is one path, not several.
            LoadReentryError: A plugin that is being loaded asked for it.
        """
        with self._single_flight():
            self._look(paths)
            return self.plugins

    def load(self, allow: Sequence[str] | None = None, *, strict: bool = False) -> tuple[Plugin, ...]:
        """Imports the plugins that may be loaded and lets each one register, in a transaction of its own.

        A plugin that fails leaves nothing but its record and a warning in the log. What is loaded or has
        failed is not tried again.

        Args:
            allow: Names of the plugins that may be loaded; None: what `SWITCHRAIL_PLUGINS` says, else all.
            strict: Whether a failed plugin is an error; it is raised when all are through.

        Raises:
            ArgumentError: The allow list is one name, not several.
            UnknownPluginError: The allow list names a plugin that is not installed; nothing is loaded then.
            PluginError: In strict mode, for the plugins that failed, with their tracebacks.
            LoadReentryError: A plugin that is being loaded asked for it.
        """
        if allow is None and (text := os.environ.get(ALLOW_LIST)) is not None:
            allow = _core.parse_allow(text)
        with self._single_flight():
            if self._discovery is None:
                self._look(None)
            selected = _core.select(list(self.plugins), allow if allow is None else several("plugins", allow))
            self._plugins = {_key(plugin): plugin for plugin in selected}
            importlib.invalidate_caches()  # a plugin may have been installed since the process began
            for plugin in _ordered([plugin for plugin in selected if _is_next(plugin)]):
                self._run(plugin)
            plugins = self.plugins
        failed = tuple(plugin for plugin in plugins if plugin.state == "failed")
        if strict and failed:
            reasons = "; ".join(f"{plugin.qualified_name}: {plugin.reason}" for plugin in failed)
            details = "\n".join(plugin.traceback or "" for plugin in failed)
            raise PluginError(f"plugins failed to load: {reasons}\n{details}", plugins=failed)
        return plugins

    def in_order(self) -> tuple[Plugin, ...]:
        """The loaded plugins in the order in which they were, then the others."""
        keys = dict.fromkeys([*self._order, *self._plugins])
        return tuple(self._plugins[key] for key in keys if key in self._plugins)

    def load_as(self, plugins: Sequence[Plugin], paths: Sequence[str] | None) -> None:
        """Loads what another process loaded, in its order, and takes its word for the rest.

        Args:
            plugins: What `in_order` gave there.
            paths: What `paths` was there.
        """
        with self._single_flight():
            self._look(paths)
            for plugin in plugins:
                found = self._plugins.get(_key(plugin))
                if found is not None and plugin.state == "loaded":
                    self._run(found)
                elif found is not None and (found.version, found.target) == (plugin.version, plugin.target):
                    self._plugins[_key(plugin)] = plugin

    def _run(self, plugin: Plugin) -> None:
        self._plugins[_key(plugin)] = loaded = _load(self._core, plugin)
        if loaded.state == "loaded":
            self._order.append(_key(plugin))
        elif loaded.state == "failed":
            _log.warning("plugin %s failed to load: %s", loaded.qualified_name, loaded.reason)

    def _look(self, paths: Iterable[str | os.PathLike[str]] | None) -> None:
        self.paths = None if paths is None else tuple(os.fspath(path) for path in several("paths", paths))
        # importlib passes over other entries of sys.path too
        places = [path for path in sys.path if isinstance(path, str)] if self.paths is None else self.paths
        discovery = _core.discover(places)
        known = self._plugins
        self._plugins = {_key(plugin): _kept(known.get(_key(plugin)), plugin) for plugin in discovery.plugins}
        self._discovery = discovery

    @contextmanager
    def _single_flight(self) -> Iterator[None]:
        if self._loading == threading.get_ident():
            raise LoadReentryError("a plugin asked for plugins while it was being loaded itself")
        with self._lock:
            self._loading = threading.get_ident()
            try:
                yield
            finally:
                self._loading = None

    def _reset(self) -> None:
        self._lock, self._loading = threading.Lock(), None


_loaders: weakref.WeakSet[Loader] = weakref.WeakSet()


def _reset_after_fork() -> None:
    for loader in _loaders:
        loader._reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def _key(plugin: Plugin) -> tuple[str, str]:
    return plugin.group, plugin.qualified_name


def _kept(known: Plugin | None, found: Plugin) -> Plugin:
    return known if known is not None and known.state in ("loaded", "failed") else found


def _is_next(plugin: Plugin) -> bool:
    return plugin.group == GROUP and plugin.state == "discovered"


def _ordered(plugins: Sequence[Plugin]) -> list[Plugin]:
    items = [
        {"key": plugin.name, "source": plugin.distribution, "priority": 0, "before": [], "after": []}
        for plugin in plugins
    ]
    return [plugins[index] for index in _core.order(items)]


def _load(core: _core.Runtime, plugin: Plugin) -> Plugin:
    origin = {
        "kind": "plugin",
        "distribution": plugin.distribution,
        "version": plugin.version or "",
        "plugin": plugin.name,
    }
    transaction = core.begin(origin)
    try:
        module, _, attribute = plugin.target.partition(":")
        register = importlib.import_module(module)
        for part in attribute.split("."):
            register = getattr(register, part)
        if isinstance(register, type) or not callable(register):
            raise RegistrationError(
                f"{plugin.target} is {register!r}; valid: a function that takes a switchrail.Registry"
            )
        register(Registry(transaction))
        transaction.commit()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: a plugin does not end its host
        return plugin.failed("".join(traceback.format_exception_only(error)).strip(), traceback.format_exc())
    finally:
        transaction.close()
    return plugin.loaded()


__all__ = ["ALLOW_LIST", "GROUP", "Loader", "Plugin"]
