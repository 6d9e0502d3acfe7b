"""Finds and loads the plugins of one runtime."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter
from typing import Any, Final, TypeVar

from switchrail import _core
from switchrail._core import Discovery, Plugin
from switchrail.arguments import as_list, texts
from switchrail.errors import (
    LoadReentryError,
    LockError,
    OrderError,
    PlatformError,
    PluginError,
    UnknownPluginError,
)
from switchrail.foreign import in_lines, one_line
from switchrail.forks import SingleFlight
from switchrail.functions import Functions
from switchrail.hooks import Hooks
from switchrail.lock import Lock
from switchrail.plugins.attempt import Attempt, handlers, is_interrupt
from switchrail.plugins.choosing import Choosing
from switchrail.plugins.declaration import in_order
from switchrail.plugins.environment import PLATFORMS, allowed, platform_in_use, seconds_allowed
from switchrail.staging import Staging, staging_of
from switchrail.variables import ALLOW_LIST, LOCK, PLATFORM, blamed_on

GROUP = "switchrail.plugins"

_IDENTITY = attrgetter("version", "target", "path")

T = TypeVar("T")

_log: Final = logging.getLogger("switchrail")


class Loader:
    """Finds and loads the plugins of one runtime, and keeps their records.

    One thread loads at a time; other threads wait for their turn. A child process that is forked during a
    load undoes the unfinished part, and can load again.

    Args:
        core: The runtime's registrations.
        hooks: The runtime's hooks.
        functions: The runtime's functions for operations.
        choosing: The record of threads that are choosing the runtime's platform. They may not load plugins.

    Attributes:
        paths: The folders searched by the last discovery; None means `sys.path`.
        default_timeout: See `Runtime.default_timeout`.
    """

    def __init__(self, core: _core.Runtime, hooks: Hooks, functions: Functions, choosing: Choosing) -> None:
        self._core, self._hooks, self._functions, self._choosing = core, hooks, functions, choosing
        self._discovery: Discovery | None = None
        self._plugins: dict[tuple[str, str], Plugin] = {}
        self._order: list[tuple[str, str]] = []
        self._attempts: Sequence[Attempt] = ()
        self._handlers: frozenset[object] = frozenset()
        self._warnings: set[str] = set()
        self._is_selected = False
        self.paths: tuple[str, ...] | None = None
        self.default_timeout: float | None = None
        self._flight = SingleFlight(self._abandon)

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """The plugins' records after the last discovery or load."""
        return tuple(self._plugins.values())

    def in_order(self) -> tuple[Plugin, ...]:
        """The loaded plugins in the order of loading, then the others."""
        keys = dict.fromkeys([*self._order, *self._plugins])
        return tuple(self._plugins[key] for key in keys if key in self._plugins)

    def platforms(self) -> tuple[Plugin, ...]:
        """The platform plugins; runs a discovery if necessary. Plugins that differ from the lock are blocked.

        Raises:
            SwitchrailError: The environment's settings are invalid; see `load`.
        """
        if not self._is_selected:
            self._alone(lambda: self._select(allowed(None)))
        return tuple(plugin for plugin in self.plugins if plugin.group == PLATFORMS)

    def seconds(self, timeout: float | None = None) -> float | None:
        """The time limit for one plugin in seconds; None means no limit. See `load`."""
        return seconds_allowed(timeout, self.default_timeout)

    def installed(self) -> Discovery:
        """The installed distributions as of the last discovery; discovers them if there was none."""
        if self._discovery is None:
            self.discover()
        assert self._discovery is not None
        return self._discovery

    def discover(self, paths: Iterable[str | os.PathLike[str]] | None = None) -> None:
        """Finds the installed plugins; imports nothing.

        Args:
            paths: Folders with installed distributions; None means `sys.path`.

        Raises:
            ArgumentError: `paths` is a single path.
            LoadReentryError: A plugin called this while it was being loaded.
            PlatformReentryError: A platform plugin called this while the platform was being chosen.
        """
        self._alone(lambda: self._look(paths))

    def load(
        self,
        allow: Sequence[str] | None = None,
        *,
        strict: bool = False,
        timeout: float | None = None,
        platform: str | None = None,
    ) -> None:
        """Loads the plugins that may be loaded, each in its own transaction.

        Selects plugins by allow list, `SWITCHRAIL_PLATFORM` and `SWITCHRAIL_LOCK`, imports them, and calls
        their functions in the order that `switchrail.plugin` describes. A plugin that fails leaves only its
        record and a warning in the log. Plugins that an earlier call tried are not tried again.

        Args:
            allow: Names of the plugins that may be loaded; None means those in `SWITCHRAIL_PLUGINS`, or else
                all.
            strict: Whether to raise an error, after all plugins were tried, if a plugin fails, hangs or
                differs from the lock. A plugin then also fails if a target of its hooks does not exist, or if
                it puts a second `replace` hook on a target.
            timeout: Time limit in seconds for one plugin's import and function together; None means
                `SWITCHRAIL_LOAD_TIMEOUT`, or else `Runtime.default_timeout`. With a limit, each plugin's code
                runs in a separate thread, and the log names plugins that take longer than 5 s. After the
                limit the thread keeps running, because Python can't stop it, but the plugin's transaction is
                closed.
            platform: The platform or device that the program uses; None means `SWITCHRAIL_PLATFORM`, or else
                any. If a distribution provides platforms, but not this one, its other plugins are blocked.

        Raises:
            ArgumentError: The allow list is a single string, or the timeout is not a number.
            ConfigError: The timeout is not above 0, or `SWITCHRAIL_LOAD_TIMEOUT` is not a number.
            UnknownPluginError: The allow list names a plugin that is not installed; nothing is loaded then.
            PlatformError: `SWITCHRAIL_PLATFORM` names no platform; nothing is loaded then.
            LockError: The lock file can't be read, or Switchrail itself differs from it; nothing is loaded
                then.
            PluginError: In strict mode, if a plugin failed, hung or differs from the lock.
            LoadReentryError: A plugin called this while it was being loaded.
            PlatformReentryError: A platform plugin called this while the platform was being chosen.
        """
        names = allowed(allow)
        seconds = self.seconds(timeout)

        def work() -> list[Plugin]:
            refused = self._select(names, platform, given=allow)
            selected = [
                plugin for plugin in self.plugins if (plugin.group, plugin.state) == (GROUP, "discovered")
            ]
            selected.sort(key=lambda plugin: (plugin.distribution.lower(), plugin.distribution, plugin.name))
            attempts = self._imported(selected, strict=strict, seconds=seconds)
            for attempt in self._ordered(attempts):
                self._step(attempt, attempt.register)
            return [
                plugin
                for plugin in self.plugins
                if plugin.state in ("failed", "hung") or _key(plugin) in refused
            ]

        failed = self._alone(work)
        if strict and failed:
            reasons = "; ".join(f"{plugin.qualified_name}: {one_line(plugin.reason)}" for plugin in failed)
            details = "\n".join(in_lines(plugin.traceback) for plugin in failed if plugin.traceback)
            raise PluginError(f"plugins failed to load: {reasons}\n{details}".strip(), plugins=tuple(failed))

    def load_as(
        self, plugins: Sequence[Plugin], paths: Sequence[str] | None, after_each: Callable[[], None]
    ) -> None:
        """Loads the plugins that another process loaded, in the same order, and copies the other records.

        Args:
            plugins: The result of `in_order` in the other process.
            paths: The value of `paths` in the other process.
            after_each: Called after each plugin.

        Raises:
            LockError: The lock file can't be read, or Switchrail itself differs from it.
        """

        def work() -> None:
            self._look(paths)
            self._plugins = {_key(plugin): plugin for plugin in self._locked(self.plugins)}
            self._is_selected = True
            wanted = []
            for plugin in plugins:
                found = self._plugins.get(_key(plugin))
                if found is not None and found.state == "blocked":
                    continue
                if found is not None and plugin.state == "loaded":
                    wanted.append(found)
                elif found is not None and (found.version, found.target) == (plugin.version, plugin.target):
                    self._plugins[_key(plugin)] = plugin
            for attempt in self._imported(wanted, strict=False, seconds=self.seconds()):
                self._step(attempt, attempt.register)
                after_each()

        self._alone(work)

    def _select(
        self, allow: Sequence[str] | None, platform: str | None = None, *, given: object = None
    ) -> set[tuple[str, str]]:
        """Blocks plugins that may not be loaded. Returns the keys of plugins that differ from the lock."""
        if self._discovery is None:
            self._look(None)
        assert self._discovery is not None
        known = list(self._known(self._discovery).values())
        with (
            blamed_on(PLATFORM, PlatformError, given=platform),
            blamed_on(ALLOW_LIST, UnknownPluginError, given=given),
        ):
            selected = _core.select(known, allow, platform_in_use(platform, known))
        locked = self._locked(selected)
        self._plugins = {_key(plugin): plugin for plugin in locked}
        before = {_key(plugin): plugin.state for plugin in selected}
        refused = {_key(plugin) for plugin in locked if plugin.state != before.get(_key(plugin))}
        self._is_selected = True
        for plugin in locked:
            if plugin.state == "failed" or _key(plugin) in refused:
                self._warn(plugin)
        return refused

    def _locked(self, plugins: Sequence[Plugin]) -> Sequence[Plugin]:
        """Blocks plugins that differ from the lock, if `SWITCHRAIL_LOCK` names one."""
        assert self._discovery is not None
        lock = os.environ.get(LOCK)
        if lock is None:
            return plugins
        with blamed_on(LOCK, LockError):
            return Lock.read(lock).apply(self._discovery, list(plugins))

    def _imported(self, plugins: Sequence[Plugin], *, strict: bool, seconds: float | None) -> list[Attempt]:
        importlib.invalidate_caches()  # a plugin may have been installed since the process started
        self._attempts = [
            Attempt(
                plugin,
                Staging(self._core, self._hooks, self._functions, plugin, strict=strict or None),
                seconds,
            )
            for plugin in plugins
        ]
        return [attempt for attempt in self._attempts if self._step(attempt, attempt.find)]

    def _ordered(self, attempts: list[Attempt]) -> list[Attempt]:
        """Puts attempts in their declared order. Plugins whose declarations form a cycle fail."""
        while True:
            declarations = [attempt.declaration for attempt in attempts]
            try:
                order = in_order([attempt.plugin for attempt in attempts], declarations)
                return [attempts[index] for index in order]
            except OrderError as error:
                for attempt in _constraining(attempts, set(error.fields["members"])):
                    attempts.remove(attempt)
                    self._give_up(attempt, error)

    def _step(self, attempt: Attempt, step: Callable[[], None]) -> bool:
        try:
            step()
        except BaseException as error:  # SystemExit too: a plugin must not end its host
            if is_interrupt(error, self._handlers):
                raise
            self._give_up(attempt, error)
            return False
        if attempt.staging.is_committed:
            key = _key(attempt.plugin)
            self._plugins[key] = attempt.plugin.loaded()
            self._order.append(key)
        return True

    def _give_up(self, attempt: Attempt, error: BaseException) -> None:
        record = attempt.failure(error)
        attempt.staging.undo()
        self._plugins[_key(record)] = record
        self._warn(record)

    def _warn(self, plugin: Plugin) -> None:
        message = f"plugin {one_line(plugin.qualified_name)} failed to load: {one_line(plugin.reason)}"
        if message not in self._warnings:
            self._warnings.add(message)
            _log.warning("%s", message, extra={"failed_plugin": plugin.qualified_name})

    def _look(self, paths: Iterable[str | os.PathLike[str]] | None) -> None:
        given = None
        if paths is not None:
            found: Iterable[Any] = as_list("paths", paths)
            found = (os.fspath(path) if isinstance(path, os.PathLike) else path for path in found)
            given = tuple(texts("paths", found))
        # Like importlib, ignores entries of sys.path that are not strings.
        searched = [path for path in sys.path if isinstance(path, str)] if given is None else list(given)
        discovery = _core.discover(searched)
        self._plugins = self._known(discovery)
        self._discovery, self.paths, self._is_selected = discovery, given, False

    def _known(self, discovery: Discovery) -> dict[tuple[str, str], Plugin]:
        """The records of all discovered and all loaded plugins.

        A `loaded` record is kept, and a `failed` or `hung` one if the plugin is unchanged. All other records
        are those of the discovery.
        """
        known = {}
        for found in discovery.plugins:
            plugin = self._plugins.get(_key(found), found)
            # A plugin that failed or hung is tried again only if its version, target or path has changed.
            keeps_failure = plugin.state in ("failed", "hung") and _IDENTITY(plugin) == _IDENTITY(found)
            known[_key(found)] = plugin if keeps_failure else found
        return known | {key: plugin for key, plugin in self._plugins.items() if plugin.state == "loaded"}

    def _alone(self, work: Callable[[], T]) -> T:
        """Runs `work` while no other thread loads. If `work` fails, restores the loader's previous state."""
        self._choosing.refuse("looked for plugins or loaded plugins")
        if self._flight.thread == threading.get_ident() or staging_of(self._hooks) is not None:
            raise LoadReentryError(
                "a plugin called discover or load while it was being loaded; valid: register with the "
                "registry passed to its function, and leave loading to the program"
            )
        return self._flight.run(lambda: self._whole(work))

    def _whole(self, work: Callable[[], T]) -> T:
        before = self._plugins, self._order, self._discovery, self.paths, self._is_selected
        self._handlers = handlers()
        try:
            self._plugins, self._order = dict(self._plugins), list(self._order)
            return work()
        except BaseException:
            for attempt in reversed(self._attempts):
                attempt.staging.undo()
            self._plugins, self._order, self._discovery, self.paths, self._is_selected = before
            raise
        finally:
            self._attempts = ()

    def _abandon(self) -> None:
        """In a forked child, undoes the unfinished load of a thread that exists in the parent only."""
        for attempt in self._attempts:
            if self._plugins[_key(attempt.plugin)].state != "loaded":
                attempt.staging.undo()
        self._attempts = ()


def _constraining(attempts: Sequence[Attempt], names: Collection[str]) -> list[Attempt]:
    """The attempts whose declarations constrain the order of the named plugins."""
    return [
        attempt
        for attempt in attempts
        if attempt.plugin.qualified_name in names
        and (attempt.declaration.before or attempt.declaration.after)
    ]


def _key(plugin: Plugin) -> tuple[str, str]:
    return plugin.group, plugin.qualified_name
