"""Runs foreign code with a time limit, and logs long waits."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Final, TypeVar

from switchrail.foreign import encodable, one_line

T = TypeVar("T")

_log: Final = logging.getLogger("switchrail")

THREADS = "switchrail "
"""The prefix of the names of threads that run foreign code with a time limit."""

TOLD_AFTER = 5.0
"""Seconds of waiting after which a log line names the foreign code.

Further lines follow 10, 20, 40 seconds and so on after the start.
"""


class HungError(Exception):
    """Foreign code exceeded its time limit.

    Attributes:
        thread: The thread that still runs the code.
    """

    def __init__(self, what: str, seconds: float, thread: threading.Thread) -> None:
        super().__init__(f"{what} took longer than {seconds:g} s; its thread keeps running")
        self.thread = thread

    def stack(self) -> str:
        """The current stack of its thread."""
        frame = sys._current_frames().get(self.thread.ident or 0)
        if frame is None:
            return "its thread has ended since\n"
        frames = "".join(traceback.format_stack(frame))
        return encodable(f"Stack of its thread (most recent call last):\n{frames}")


PATIENCE = 60.0
"""The command's default time limit for foreign code, in seconds."""


def patience(seconds: float | None) -> float | None:
    """The time limit for work other than loading a plugin: at least `PATIENCE`; None means no limit.

    Args:
        seconds: The time limit for loading a plugin.
    """
    return None if seconds is None else max(seconds, PATIENCE)


def within(
    seconds: float | None, work: Callable[[], T], name: str, what: str, limit: float | None = None
) -> T:
    """Runs work in another thread with a time limit; without a limit, in the current thread.

    Args:
        seconds: The time limit in seconds; None means no limit.
        work: The work. After the limit its thread keeps running, because Python can't stop it.
        name: The owner of the work, such as `plugin acme:acme`.
        what: The kind of work, such as `its import`.
        limit: The limit to state in an error, if a part of it was already used; None means `seconds`.

    Raises:
        HungError: The limit was exceeded.
        BaseException: Any exception of `work`.
    """
    if seconds is None:
        return work()
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
    start, told_after = time.monotonic(), TOLD_AFTER
    thread.start()
    while not done.wait(max(0, min(seconds, told_after) - (time.monotonic() - start))):
        passed = time.monotonic() - start
        if passed >= seconds:
            raise HungError(what, seconds if limit is None else limit, thread)
        if passed >= told_after:
            told = f"waiting for {name}: {what} has taken {passed:.0f} s so far"
            _log.warning("%s", one_line(f"{told}; its time limit ends in {seconds - passed:.0f} s"))
            told_after *= 2
    if errors:
        raise errors.pop()
    return results[0]
