"""Records which threads are choosing the platform, since these can't wait for plugins to load."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from switchrail.errors import PlatformReentryError

T = TypeVar("T")


class Choosing(threading.local):
    """Whether this thread is choosing the platform of one runtime.

    A plugin that is being loaded may ask for the platform. So a platform plugin that is being asked must not
    wait for the loader, or both could deadlock.
    """

    _here: bool = False

    def run(self, work: Callable[[], T]) -> T:
        """Runs work that chooses the platform, or a part of it."""
        try:
            self._here = True
            return work()
        finally:
            self._here = False

    def refuse(self, what: str) -> None:
        """Refuses a call from a platform plugin that is being asked.

        Args:
            what: The plugin's action, such as `asked for the platform`.

        Raises:
            PlatformReentryError: This thread is choosing the platform.
        """
        if self._here:
            raise PlatformReentryError(f"a platform plugin {what} while it was being asked for its platform")
