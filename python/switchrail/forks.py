"""Locks that a forked child can take."""

from __future__ import annotations

import os
import threading


def lock_across_forks() -> threading.RLock:
    """A lock that no other thread holds at the moment of a fork: a child could never take it.

    A fork takes these locks in the reverse order of their making, so that one which is held while another is
    taken has to be made after it. The thread that holds it can take it again: a signal handler may fork.
    """
    lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock
