"""Checks files before they are read: reading a pipe may never end, and a file may exceed the memory."""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

LIMIT: Final = 64 << 20
"""Size limit in bytes of a file to parse. The largest tensor index of a published model has 15 MB."""


def check_file(path: str | os.PathLike[str], limit: int = LIMIT) -> None:
    """Checks that a path leads to a regular file of at most `limit` bytes.

    Raises:
        OSError: The path does not lead to a regular file, or the file is larger than `limit`.
    """
    found = os.stat(path)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    if found.st_size > limit:
        raise OSError(
            errno.EFBIG, f"the file has {found.st_size} bytes; valid: at most {limit}", os.fspath(path)
        )
