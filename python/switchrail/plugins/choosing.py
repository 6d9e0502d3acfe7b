"""Records which threads are choosing the platform; such a thread must not wait for plugins to load."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from switchrail.errors import PlatformReentryError

T = TypeVar("T")


class Choosing(threading.local):
    """Whether the current thread is choosing the platform of one runtime.

    A plugin that is being loaded may need the platform, and then waits for the thread that chooses it. If
    that thread ran a platform plugin that waits for the loader, neither thread could go on.
    """

    _here: bool = False

    def run(self, work: Callable[[], T]) -> T:
        """Runs `work`, which chooses the platform or calls a platform plugin."""
        try:
            self._here = True
            return work()
        finally:
            self._here = False

    def refuse(self, what: str) -> None:
        """Refuses a call that a platform plugin makes while the platform is being chosen.

        Args:
            what: The call in words, such as `asked for the platform`.

        Raises:
            PlatformReentryError: This thread is choosing the platform.
        """
        if self._here:
            raise PlatformReentryError(f"a platform plugin {what} while the platform was being chosen")
