"""Helpers for tests with several threads."""

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
    """Binds a plan while other threads change the registry, and checks the backend of gated delta layer 0.

    Returns:
        Whether the plan could be bound. It can't if another thread has removed one of its backends.
    """
    try:
        bound = runtime.bind(plan)
    except StalePlanError:
        return False
    assert bound.lookup("gated_delta", "decode", 0)
    assert type(bound.backend("gated_delta", phase, 0)).__name__ in ("Acme", "TorchGatedDelta")
    return True
