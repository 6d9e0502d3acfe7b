"""What tests of backends and plugins need: a runtime of their own, and inputs for each op."""

from __future__ import annotations

from switchrail.testing.isolated import isolated

__all__ = ["isolated"]
