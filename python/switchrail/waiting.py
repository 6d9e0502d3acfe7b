"""Waiting for foreign code with a limit, and not in silence."""

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
"""How the names of the threads begin in which foreign code runs with a limit."""

TOLD_AFTER = 5.0
"""Seconds after which a log line names the code that is waited for; the next comes after twice as long."""


class HungError(Exception):
    """Foreign code takes longer than it may.

    Attributes:
        thread: The thread that goes on with it.
    """

    def __init__(self, what: str, seconds: float, thread: threading.Thread) -> None:
        super().__init__(f"{what} takes longer than {seconds:g} s; its thread goes on")
        self.thread = thread

    def stack(self) -> str:
        """Where its thread is now."""
        frame = sys._current_frames().get(self.thread.ident or 0)
        if frame is None:
            return "its thread has ended since\n"
        frames = "".join(traceback.format_stack(frame))
        return encodable(f"Stack of its thread (most recent call last):\n{frames}")


PATIENCE = 60.0
"""Seconds that the command gives foreign code where the environment says nothing of it."""


def patience(seconds: float | None) -> float | None:
    """Seconds for code that no plugin brings: as many as a plugin may take, and no fewer than `PATIENCE`."""
    return None if seconds is None else max(seconds, PATIENCE)


def within(
    seconds: float | None, work: Callable[[], T], name: str, what: str, limit: float | None = None
) -> T:
    """Does something in a thread of its own, and waits for it, and no longer; without a limit in this thread.

    Args:
        seconds: How long it may take; None: as long as it takes.
        work: What is done. After that time its thread goes on, for Python can't stop it.
        name: Whose code it is, such as `plugin acme:acme`.
        what: What it does, such as `its import`.
        limit: What an error says of the time, where some of it is used up; None: `seconds`.

    Raises:
        HungError: It takes longer.
        BaseException: What `work` raises.
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
            _log.warning("%s", one_line(f"{told}, and is given up in {seconds - passed:.0f} s"))
            told_after *= 2
    if errors:
        raise errors.pop()
    return results[0]
