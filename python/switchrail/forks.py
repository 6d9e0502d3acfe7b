"""Locks that a forked child can take: those that a fork waits for, and those that a child gets anew."""

from __future__ import annotations

import logging  # noqa: F401  # a reset may log: logging's own reset in the child has to be registered before
import os
import threading
import weakref
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")


def lock_across_forks() -> threading.RLock:
    """A lock for short work: a fork waits until no other thread holds it, or the child could never take it.

    A fork takes these locks in the reverse order of their making, so that one which is held while another is
    taken has to be made after it. The thread that holds it can take it again: a signal handler may fork.
    """
    lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock


class SingleFlight:
    """Runs long work, such as foreign code, in one thread at a time; other threads wait for their turn.

    A fork doesn't wait. In a forked child no work is running, whatever ran in the parent.

    Args:
        abandon: Called in a forked child if another thread was at work: its work will never end there.

    Attributes:
        thread: The identifier of the thread whose work is running; None: no work is.
    """

    def __init__(self, abandon: Callable[[], None] | None = None) -> None:
        self.thread: int | None = None
        self._abandon = abandon
        self._lock = threading.RLock()
        _flights.add(self)

    # No context manager: an interrupt between its `__enter__` and the block would leave the lock taken.
    def run(self, work: Callable[[], T]) -> T:
        """Does the work and returns its result. A thread that is at work may nest more work."""
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
