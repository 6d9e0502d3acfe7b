"""Loads one plugin: imports it, then runs its function in a transaction."""

from __future__ import annotations

import builtins
import inspect
import signal
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from switchrail._core import Plugin
from switchrail.foreign import cut, encodable
from switchrail.plugins.declaration import Declaration, declaration_of
from switchrail.plugins.entry_point import check_function, error_of, import_target
from switchrail.registration import Registry
from switchrail.staging import Staging
from switchrail.waiting import HungError, within

T = TypeVar("T")

_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())  # missing in Python 3.10


class Attempt:
    """The attempt to load one plugin.

    Args:
        plugin: The plugin's record.
        staging: The plugin's transaction.
        seconds: Time limit for the plugin's import and function together, in seconds; None means no limit.

    Attributes:
        plugin: The plugin's record.
        staging: The plugin's transaction.
        declaration: The arguments of `switchrail.plugin`, known after the plugin's import.
    """

    def __init__(self, plugin: Plugin, staging: Staging, seconds: float | None) -> None:
        self.plugin, self.staging = plugin, staging
        self.declaration = Declaration()
        self._seconds = self._left = seconds
        self._function: Callable[[Registry], Any] | None = None

    def find(self) -> None:
        """Imports the plugin."""
        self._function, self.declaration = self._run("its import", self._find)

    def register(self) -> None:
        """Calls the plugin's function, and commits the staged changes."""
        self._run("its function", self._register)
        self.staging.commit()

    def failure(self, error: BaseException) -> Plugin:
        """The plugin's record after an exception."""
        if isinstance(error, HungError):
            return self.plugin.hung(f"{error}; its registrations are refused", error.stack())
        return self.plugin.failed(*described(error))

    def _find(self) -> tuple[Callable[[Registry], Any], Declaration]:
        found = check_function(self.plugin, import_target(self.plugin), "a switchrail.Registry")
        return found, declaration_of(found)

    def _register(self) -> None:
        assert self._function is not None
        result = self._function(Registry(self.staging))
        if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
            if inspect.iscoroutine(result):
                result.close()  # otherwise Python warns that the coroutine was never awaited
            kind = type(result).__qualname__
            problem = f"it returned a {kind}, whose body has not run; valid: a plain function"
            raise error_of(self.plugin, problem)

    def _run(self, what: str, work: Callable[[], T]) -> T:
        start, name = time.monotonic(), f"plugin {self.plugin.qualified_name}"
        try:
            return within(self._left, lambda: self.staging.run(work), name, what, self._seconds)
        finally:
            if self._left is not None:
                self._left -= time.monotonic() - start


def handlers() -> frozenset[object]:
    """The code objects of the current signal handlers."""
    return _codes(signal.valid_signals())


def _codes(signals: Iterable[int]) -> frozenset[object]:
    found = map(signal.getsignal, signals)
    return frozenset(getattr(getattr(each, "__func__", each), "__code__", None) for each in found) - {None}


def is_interrupt(error: BaseException, before: frozenset[object]) -> bool:
    """Whether an exception is Ctrl-C, or comes from a signal handler of the program.

    An exception from a plugin's signal handler counts as a failure of the running plugin, unless the signal
    is SIGINT.

    Args:
        error: The exception.
        before: The result of `handlers` before the first plugin ran.
    """
    if isinstance(error, _GROUP):
        return any(is_interrupt(inner, before) for inner in error.exceptions)
    passed = {frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)}
    if not passed.isdisjoint(before | _codes([signal.SIGINT])):
        return True
    return isinstance(error, KeyboardInterrupt) and passed.isdisjoint(handlers())


def described(error: BaseException) -> tuple[str, str]:
    """An exception's class with its message, and its traceback; each at most `foreign.LINES` characters.

    Works for any exception class, even if its `__str__` fails.
    """
    name = type(error).__qualname__
    try:
        text = str(error)
    except (Exception, SystemExit) as broken:
        text = f"it has no text: its __str__ raised {type(broken).__qualname__}"
    try:
        whole = "".join(traceback.format_exception(error))
    except (Exception, SystemExit):
        frames = "".join(traceback.format_tb(error.__traceback__))
        whole = f"Traceback (most recent call last):\n{frames}{name}: {text}\n"
    return cut(encodable(f"{name}: {text}" if text else name)), cut(encodable(whole))
