"""Python's garbage collector while engines run. A full collection would delay a step by tens of ms."""

from __future__ import annotations

import gc

from switchrail.forks import lock_across_forks

_lock = lock_across_forks()
_engines = 0


def freeze() -> None:
    """Exclude existing objects from later collections, until `thaw` has been called as often."""
    global _engines
    gc.collect()
    with _lock:
        _engines += 1
        gc.freeze()


def thaw() -> None:
    """Undo `freeze` when called for the last engine."""
    global _engines
    with _lock:
        _engines -= 1
        if not _engines:
            gc.unfreeze()


__all__ = ["freeze", "thaw"]
