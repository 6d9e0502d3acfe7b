"""Gives other processes this one's runtime, and compares theirs with it."""

from __future__ import annotations

from switchrail.processes.ranks import check_ranks
from switchrail.processes.runtime_state import RuntimeState

__all__ = ["RuntimeState", "check_ranks"]
