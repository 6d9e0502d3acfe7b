"""Runs the command as `python -m switchrail`."""

from __future__ import annotations

from switchrail.cli import main

if __name__ == "__main__":
    main()
