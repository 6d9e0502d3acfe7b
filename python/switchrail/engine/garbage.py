"""Python's garbage collector while engines run: a full collection would hold up a step for tens of ms."""

from __future__ import annotations

import gc

from switchrail.forks import lock_across_forks

_lock = lock_across_forks()
_engines = 0


def freeze() -> None:
    """Leaves what there is now out of later collections, until `thaw` is called as often."""
    global _engines
    gc.collect()
    with _lock:
        _engines += 1
        gc.freeze()


def thaw() -> None:
    """Undoes `freeze`, when it is called for the last engine."""
    global _engines
    with _lock:
        _engines -= 1
        if not _engines:
            gc.unfreeze()


__all__ = ["freeze", "thaw"]
