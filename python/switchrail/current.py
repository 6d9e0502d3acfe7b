"""The default runtime of the process."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from switchrail.registration import Registrar
from switchrail.runtime import Runtime

if TYPE_CHECKING:
    from switchrail._core import Transaction

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


class _Current(Registrar):
    def _open(self) -> AbstractContextManager[Transaction]:
        return current_runtime()._open()


register = _Current().register
"""Registers a backend with the default runtime; see `Registrar.register`."""
