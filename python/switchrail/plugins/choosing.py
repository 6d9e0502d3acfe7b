"""Whether a thread chooses the platform: what asks its plugins can't wait for what loads others."""

from __future__ import annotations

import threading

from switchrail.errors import PlatformReentryError


class Choosing(threading.local):
    """Of one runtime, for each thread.

    A plugin that is being loaded may ask for the platform. So a platform plugin that is being asked may not
    wait for the loader: each could wait for the other.

    Attributes:
        here: Whether this thread chooses the runtime's platform.
    """

    here: bool = False

    def refuse(self, what: str) -> None:
        """Refuses a thread that chooses.

        Args:
            what: What it does, such as `asked for the platform`.

        Raises:
            PlatformReentryError: This thread chooses.
        """
        if self.here:
            raise PlatformReentryError(f"a platform plugin {what} while it was asked itself")
