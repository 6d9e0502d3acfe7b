"""The default runtime of the process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from switchrail.forks import lock_across_forks
from switchrail.registration import Registrar
from switchrail.runtime import Runtime

if TYPE_CHECKING:
    from switchrail._core import Plugin
    from switchrail.staging import Staging

_lock = lock_across_forks()
_current: Runtime | None = None


def current_runtime() -> Runtime:
    """The default runtime, created on first use."""
    global _current
    with _lock:
        if _current is None:
            _current = Runtime()
        return _current


def peek_current() -> Runtime | None:
    """The default runtime, or None if it was not created yet."""
    return _current


def swap_current(runtime: Runtime | None) -> Runtime | None:
    """Replaces the default runtime; returns the previous one, or None."""
    global _current
    with _lock:
        before, _current = _current, runtime
        return before


class _Current(Registrar):
    def _open(self) -> AbstractContextManager[Staging]:
        return current_runtime()._open()


register = _Current().register
"""Registers a backend in the default runtime; see `Registrar.register`."""

hook = _Current().hook
"""Adds a hook to the default runtime; see `Registrar.hook`."""


def load(
    plugins: Sequence[str] | None = None, *, strict: bool = False, timeout: float | None = None
) -> tuple[Plugin, ...]:
    """Loads the installed plugins, or the named ones, into the default runtime; see `Runtime.load`."""
    return current_runtime().load(plugins, strict=strict, timeout=timeout)
