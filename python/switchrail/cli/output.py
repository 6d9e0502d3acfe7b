"""Keeps standard output for the command's own output; all other output goes to standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from io import TextIOWrapper
from typing import TextIO

_OUTPUT: ContextVar[TextIO | None] = ContextVar("output", default=None)


def move_output(*, others: bool) -> None:
    """Moves standard output to another file descriptor, which C code and child processes don't use.

    The move lasts until the process ends, because C code often writes its buffers only then. If standard
    output or standard error is closed, nothing is moved.

    Args:
        others: Whether output of other code goes to standard error; if not, it is discarded.
    """
    out, err = sys.stdout, sys.stderr
    if not isinstance(out, TextIOWrapper) or err is None:
        return
    out.flush()
    place = out.fileno()
    moved = os.dup(place)
    if others:
        os.dup2(err.fileno(), place)
    else:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), place)
    sys.stdout = TextIOWrapper(
        os.fdopen(moved, "wb"),
        encoding=out.encoding,
        errors=out.errors,
        line_buffering=out.line_buffering,
        write_through=out.write_through,
    )


@contextmanager
def others_aside() -> Iterator[None]:
    """In the block, redirects the output of plugins, kernels and libraries to standard error."""
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
    """Prints a line to the command's own standard output."""
    print(text, file=output(), flush=True)
