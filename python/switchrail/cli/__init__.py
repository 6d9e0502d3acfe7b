"""The command `switchrail`."""

from __future__ import annotations

from switchrail.cli.app import main

__all__ = ["main"]
