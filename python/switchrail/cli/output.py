"""Standard output has the command's own words alone; what others print goes to standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from typing import TextIO

_OUTPUT: ContextVar[TextIO | None] = ContextVar("output", default=None)


@contextmanager
def others_aside() -> Iterator[None]:
    """What plugins, kernels and libraries print meanwhile goes to standard error."""
    token = _OUTPUT.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _OUTPUT.reset(token)


def output() -> TextIO:
    """The command's own standard output."""
    return _OUTPUT.get() or sys.stdout


def say(text: str) -> None:
    """Prints a line to standard output."""
    print(text, file=output(), flush=True)


__all__ = ["others_aside", "output", "say"]
