"""Writing a lock of what may be loaded, and comparing an installation with one.

`load` holds plugins to the lock that `SWITCHRAIL_LOCK` names; see `Loader.load`.
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
    """Writes a lock of what is installed on `sys.path` now; an earlier one is replaced whole or not at all.

    Where the path is a link, what it leads to is replaced.

    Raises:
        LockError: The files of a plugin can't be told or read, or the lock can't be written.
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
        with contextlib.suppress(OSError):  # where it could not be written, it is not there
            written.unlink()
    return lock


def lock_differences(path: str | os.PathLike[str]) -> list[LockDifference]:
    """Where what is installed on `sys.path` now differs from a lock, by distribution.

    Raises:
        LockError: The lock can't be read.
    """
    return Lock.read(path).differences(_installed())


def _installed() -> _core.Discovery:
    return _core.discover([entry for entry in sys.path if isinstance(entry, str)])


__all__ = ["Lock", "LockDifference", "lock_differences", "write_lock"]
