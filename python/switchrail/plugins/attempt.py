"""One plugin on its way into a runtime: imported, then run in its transaction."""

from __future__ import annotations

import builtins
import inspect
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from switchrail._core import Plugin
from switchrail.foreign import cut
from switchrail.plugins.declaration import Declaration, declaration_of
from switchrail.plugins.entry_point import check_function, error_of, import_target
from switchrail.registration import Registry
from switchrail.staging import Staging

T = TypeVar("T")

THREADS = "switchrail plugin "
"""How the names of the threads begin that plugins run in where there is a timeout."""


_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())  # Python 3.10 has none


class HungError(Exception):
    """A plugin's code takes longer than it may.

    Attributes:
        thread: The thread that goes on with it.
    """

    def __init__(self, thread: threading.Thread) -> None:
        super().__init__()
        self.thread = thread


class Attempt:
    """One plugin on its way.

    Args:
        plugin: Its record.
        staging: Its transaction.
        seconds: How long its import and its function may take together; None: as long as they take.

    Attributes:
        plugin: Its record.
        staging: Its transaction.
        declaration: What its function says of its place, once it is imported.
    """

    def __init__(self, plugin: Plugin, staging: Staging, seconds: float | None) -> None:
        self.plugin, self.staging = plugin, staging
        self.declaration = Declaration()
        self._seconds = self._left = seconds
        self._function: Callable[[Registry], Any] | None = None

    def find(self) -> None:
        """Imports it."""
        self._function, self.declaration = self._run("its import", self._find)

    def register(self) -> None:
        """Calls its function, and commits what that has staged."""
        self._run("its function", self._register)
        self.staging.commit()

    def failure(self, error: BaseException) -> Plugin:
        """The record after it raised."""
        if isinstance(error, HungError):
            reason = (
                f"{error.args[0]} takes longer than {self._seconds:g} s; its thread goes on, "
                "and what it registers is refused"
            )
            return self.plugin.hung(reason, _encodable(_stack_of(error.thread)))
        return self.plugin.failed(*described(error))

    def _find(self) -> tuple[Callable[[Registry], Any], Declaration]:
        found = check_function(self.plugin, import_target(self.plugin), "a switchrail.Registry")
        return found, declaration_of(found)

    def _register(self) -> None:
        assert self._function is not None
        result = self._function(Registry(self.staging))
        if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
            if inspect.iscoroutine(result):
                result.close()  # else Python warns that it was never awaited
            kind = type(result).__qualname__
            problem = f"it returned a {kind}, whose body has not run; valid: a plain function"
            raise error_of(self.plugin, problem)

    def _run(self, what: str, work: Callable[[], T]) -> T:
        if self._left is None:
            return self.staging.run(work)
        start = time.monotonic()
        try:
            return _within(self._left, lambda: self.staging.run(work), self.plugin.qualified_name)
        except HungError as error:
            error.args = (what,)
            raise
        finally:
            self._left -= time.monotonic() - start


def handlers() -> frozenset[object]:
    """The code of those who now handle signals."""
    found = map(signal.getsignal, signal.valid_signals())
    return frozenset(getattr(getattr(each, "__func__", each), "__code__", None) for each in found) - {None}


def is_interrupt(error: BaseException, handlers: frozenset[object]) -> bool:
    """Whether the program was interrupted: by Ctrl-C, or by what a handler of a signal raised.

    Args:
        error: What was raised.
        handlers: What `handlers` gave before: a plugin's own handlers interrupt only the plugin.
    """
    if isinstance(error, KeyboardInterrupt):
        return True
    if isinstance(error, _GROUP):
        return any(is_interrupt(inner, handlers) for inner in error.exceptions)
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def described(error: BaseException) -> tuple[str, str]:
    """What an exception says, and its traceback, each at most `switchrail.foreign.LINES` characters.

    Whatever its class does to prevent that.
    """
    name = type(error).__qualname__
    try:
        text = str(error)
    except (Exception, SystemExit) as broken:
        text = f"its text can't be had, for its __str__ raised {type(broken).__qualname__}"
    try:
        whole = "".join(traceback.format_exception(error))
    except (Exception, SystemExit):
        frames = "".join(traceback.format_tb(error.__traceback__))
        whole = f"Traceback (most recent call last):\n{frames}{name}: {text}\n"
    return cut(_encodable(f"{name}: {text}" if text else name)), cut(_encodable(whole))


def _encodable(text: str) -> str:
    """Text without lone surrogates, which messages and file names may have."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _within(seconds: float, work: Callable[[], T], name: str) -> T:
    results: list[T] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=run, name=f"{THREADS}{name}", daemon=True)
    thread.start()
    if not done.wait(max(seconds, 0)):
        raise HungError(thread)
    if errors:
        raise errors.pop()
    return results[0]


def _stack_of(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return "its thread has ended since\n"
    return "Stack of its thread (most recent call last):\n" + "".join(traceback.format_stack(frame))
