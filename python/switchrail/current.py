"""The default runtime of the process."""

from __future__ import annotations

import threading

from switchrail.runtime import Runtime

_lock = threading.Lock()
_current: Runtime | None = None


def current_runtime() -> Runtime:
    """The default runtime, made when it is first asked for."""
    global _current
    with _lock:
        if _current is None:
            _current = Runtime()
        return _current


def swap_current(runtime: Runtime | None) -> Runtime | None:
    """Makes another runtime the default one; returns the one before, None where none was made yet."""
    global _current
    with _lock:
        before, _current = _current, runtime
        return before
