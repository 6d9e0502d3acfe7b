"""Locks that stay usable in forked children: a fork waits for short work; locks of long work are renewed."""

from __future__ import annotations

import logging  # noqa: F401  # its own reset after a fork must run before those below, which may log
import os
import threading
import weakref
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")


def lock_across_forks() -> threading.RLock:
    """A lock for short work.

    A fork waits until no other thread holds the lock, since the child could never take a held lock. A fork
    takes these locks in the reverse order of their creation. So if a thread takes lock B while it holds lock
    A, B must be created before A. The lock is reentrant, because a signal handler may fork.
    """
    lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock


class SingleFlight:
    """Runs long work, such as a plugin's code, in one thread at a time; other threads wait for their turn.

    A fork doesn't wait. In a forked child the lock is free and `thread` is None, whatever was running in the
    parent; only the forking thread's own work continues there.

    Args:
        abandon: Called in a forked child if another thread was working in the parent. The child lacks that
            thread, so the work never ends there.

    Attributes:
        thread: The identifier of the working thread; None if no work is running.
    """

    def __init__(self, abandon: Callable[[], None] | None = None) -> None:
        self.thread: int | None = None
        self._abandon = abandon
        self._lock = threading.RLock()
        _flights.add(self)

    # Not a context manager: an interrupt between its `__enter__` and the block would leave the lock taken.
    def run(self, work: Callable[[], T]) -> T:
        """Runs the work and returns its result. A working thread may nest more work."""
        with self._lock:
            outer = self.thread
            try:
                self.thread = threading.get_ident()
                return work()
            finally:
                self.thread = outer

    def _reset(self) -> None:
        thread, self.thread, self._lock = self.thread, None, threading.RLock()
        if self._abandon is not None and thread not in (None, threading.get_ident()):
            self._abandon()


_flights: Final[weakref.WeakSet[SingleFlight]] = weakref.WeakSet()


def _reset_in_child() -> None:
    for flight in list(_flights):
        flight._reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)
