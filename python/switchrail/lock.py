"""Writes locks, and compares the installed distributions with a lock.

A lock is a file with digests of Switchrail and of all distributions that have plugins. `Loader.load` applies
the lock that `SWITCHRAIL_LOCK` names.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from switchrail import _core
from switchrail._core import Lock, LockDifference
from switchrail.errors import LockError


def write_lock(path: str | os.PathLike[str]) -> Lock:
    """Writes a lock of the distributions on `sys.path`. Replaces an existing file atomically.

    If the path is a link, its target is replaced.

    Raises:
        LockError: A plugin's files can't be listed or read, or the lock can't be written.
    """
    lock, file = Lock.of(_installed()), Path(os.path.realpath(path))
    written = file.parent / f".{file.name}.{os.getpid()}"
    try:
        written.write_text(str(lock), encoding="utf-8")
        os.replace(written, file)
    except OSError as error:
        problem = error.strerror or str(error)
        raise LockError(
            f"the lock {os.fspath(path)!r} can't be written: {problem}", path=os.fspath(path), problem=problem
        ) from error
    finally:
        with contextlib.suppress(OSError):  # the file was moved, or never created
            written.unlink()
    return lock


def lock_differences(path: str | os.PathLike[str]) -> list[LockDifference]:
    """The differences between the distributions on `sys.path` and a lock, by distribution.

    Raises:
        LockError: The lock can't be read.
    """
    return Lock.read(path).differences(_installed())


def _installed() -> _core.Discovery:
    return _core.discover([entry for entry in sys.path if isinstance(entry, str)])


__all__ = ["Lock", "LockDifference", "lock_differences", "write_lock"]
