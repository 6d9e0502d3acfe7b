"""The lock for changes of hooks, and for reading data that a change writes in several steps."""

from __future__ import annotations

from typing import Final

from switchrail.forks import lock_across_forks

change_lock: Final = lock_across_forks()

warnings: Final[list[str]] = []
"""Warnings of the change in progress.

They are logged after the lock is released, since a log handler may wait.
"""
