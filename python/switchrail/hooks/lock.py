"""The lock under which hooks change, and under which what hooks put somewhere is read."""

from __future__ import annotations

from typing import Final

from switchrail.forks import lock_across_forks

change_lock: Final = lock_across_forks()
