"""Runs parts of a test in forked processes."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable


def forked(work: Callable[[], object]) -> Callable[[], None]:
    """Starts `work` in a forked child. The returned function waits for it, and fails if `work` failed."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os.write(2, traceback.format_exc().encode())
            os._exit(1)
        os._exit(0)

    def wait() -> None:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    return wait
