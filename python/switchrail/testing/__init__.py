"""Tools for tests of backends and plugins: an isolated runtime, and the conformance suite for pytest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from switchrail.testing.isolated import isolated

if TYPE_CHECKING:
    from switchrail.testing.conformance.pytest_entry import backend_test


def __getattr__(name: str) -> Any:
    if name != "backend_test":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from switchrail.testing.conformance.pytest_entry import backend_test  # imports torch, pytest

    return backend_test


__all__ = ["backend_test", "isolated"]
