"""Excludes an engine's objects from garbage collections, which would delay steps by tens of milliseconds."""

from __future__ import annotations

import gc
from typing import Any, Final

from switchrail.forks import lock_across_forks

_lock = lock_across_forks()
_engines = 0
OF_PYTHON: Final = 1000
"""If more objects than this are excluded, the program called `gc.freeze`; Python itself excludes hundreds."""
_was_frozen = False  # whether the program had called `gc.freeze` before the first engine


def freeze() -> None:
    """Excludes existing objects from later collections, until `thaw` has been called as often as `freeze`."""
    global _engines, _was_frozen
    gc.collect()
    with _lock:
        if not _engines:
            _was_frozen = gc.get_freeze_count() > OF_PYTHON
        _engines += 1
        gc.freeze()


def refreeze() -> None:
    """Also excludes the objects made since `freeze`. Does nothing if no `freeze` is in effect."""
    gc.collect()
    with _lock:
        if _engines:
            gc.freeze()


def thaw() -> None:
    """Undoes one `freeze`.

    The last `thaw` includes all objects again, unless the program had called `gc.freeze` before the engines.
    """
    global _engines
    with _lock:
        _engines -= 1
        gc.unfreeze()
        if _engines or _was_frozen:  # frees the closed engine's objects, then excludes all others again
            gc.collect()
            gc.freeze()


def referrers(*objects: Any) -> list[Any]:
    """Like `gc.get_referrers`, but also finds objects that `freeze` has excluded.

    If no `freeze` is in effect, objects that the program excluded with `gc.freeze` are not found.
    """
    with _lock:
        if _engines:
            gc.collect()  # otherwise the `gc.freeze` below would keep garbage from being freed
            gc.unfreeze()
        try:
            found = gc.get_referrers(*objects)
        finally:
            if _engines:
                gc.freeze()
    return [one for one in found if one is not objects]
