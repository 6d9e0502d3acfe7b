"""Python's garbage collector while engines run. A full collection would delay a step by tens of ms."""

from __future__ import annotations

import gc
from typing import Any

from switchrail.forks import lock_across_forks

_lock = lock_across_forks()
_engines = 0
_was_frozen = False  # whether the program had called `gc.freeze` before the first engine


def freeze() -> None:
    """Exclude existing objects from later collections, until as many calls of `thaw`."""
    global _engines, _was_frozen
    gc.collect()
    with _lock:
        if not _engines:
            _was_frozen = gc.get_freeze_count() > 0
        _engines += 1
        gc.freeze()


def thaw() -> None:
    """Undo `freeze`, at the call for the last engine; objects that the program had excluded stay excluded."""
    global _engines
    with _lock:
        _engines -= 1
        gc.unfreeze()
        if _engines or _was_frozen:  # frees the closed engine's objects before others are excluded again
            gc.collect()
            gc.freeze()


def referrers(*objects: Any) -> list[Any]:
    """Like `gc.get_referrers`, but also finds objects that `freeze` has excluded.

    Objects that only `gc.freeze` itself has excluded are not found.
    """
    with _lock:
        if _engines:
            gc.collect()  # otherwise garbage created since `freeze` would never be freed
            gc.unfreeze()
        try:
            found = gc.get_referrers(*objects)
        finally:
            if _engines:
                gc.freeze()
    return [one for one in found if one is not objects]


__all__ = ["freeze", "referrers", "thaw"]
