"""The lock for changing hooks, and for reading what a change writes in more than one step."""

from __future__ import annotations

from typing import Final

from switchrail.forks import lock_across_forks

change_lock: Final = lock_across_forks()

warnings: Final[list[str]] = []
"""What the change in progress warns of; it is logged without the lock, for a handler of the log may wait."""
