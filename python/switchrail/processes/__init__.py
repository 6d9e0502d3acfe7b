"""Sends a runtime to other processes, and compares the runtimes of the ranks of a distributed job."""

from __future__ import annotations

from switchrail.processes.ranks import check_ranks
from switchrail.processes.runtime_state import RuntimeState

__all__ = ["RuntimeState", "check_ranks"]
