"""The lock under which hooks change, and data are read that a change writes in several steps."""

from __future__ import annotations

from typing import Final

from switchrail.forks import lock_across_forks

change_lock: Final = lock_across_forks()

warnings: Final[list[str]] = []
"""Warnings of the change in progress. They are logged without the lock, for a log handler may wait."""
