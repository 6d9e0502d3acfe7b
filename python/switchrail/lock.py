"""Writing a lock of what may be loaded, and comparing an installation with one.

`load` holds plugins to the lock that `SWITCHRAIL_LOCK` names; see `Loader.load`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from switchrail import _core
from switchrail._core import Lock, LockDifference
from switchrail.errors import LockError


def write_lock(path: str | os.PathLike[str]) -> Lock:
    """Writes a lock of what is installed on `sys.path` now; an earlier one is replaced whole or not at all.

    Raises:
        LockError: The files of a plugin can't be told or read, or the lock can't be written.
    """
    lock, file = Lock.of(_installed()), Path(path)
    written = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        written.write_text(str(lock), encoding="utf-8")
        os.replace(written, file)
    except OSError as error:
        problem = error.strerror or str(error)
        raise LockError(
            f"the lock {file} can't be written: {problem}", path=str(file), problem=problem
        ) from error
    finally:
        written.unlink(missing_ok=True)
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
