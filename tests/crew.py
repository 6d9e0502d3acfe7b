"""Threads that work, and threads that watch them until they are done."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import switchrail
from switchrail.errors import StalePlanError


def run_watched(
    working: Sequence[threading.Thread], watching: Sequence[threading.Thread], done: threading.Event
) -> None:
    """Starts all threads, and sets `done` for the watching threads once the working threads have ended."""
    for thread in (*working, *watching):
        thread.start()
    for thread in working:
        thread.join()
    done.set()
    for thread in watching:
        thread.join()


def bind_beside_writers(runtime: switchrail.Runtime, plan: switchrail.RoutePlan, phase: str) -> bool:
    """Binds a plan and checks the backend of its gated delta layer 0.

    Returns:
        Whether the plan could be bound. It can't if a writer has removed its backend meanwhile.
    """
    try:
        bound = runtime.bind(plan)
    except StalePlanError:
        return False
    assert bound.lookup("gated_delta", "decode", 0)
    assert type(bound.backend("gated_delta", phase, 0)).__name__ in ("Acme", "TorchGatedDelta")
    return True
