"""`python -m switchrail` runs the command `switchrail`."""

from __future__ import annotations

from switchrail.cli import main

if __name__ == "__main__":
    main()
