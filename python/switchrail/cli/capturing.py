"""Shows a progress bar on the terminal while an engine captures its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def capturing(console: Console) -> Iterator[Callable[[int, int], None]]:
    """Yields the callback `progress` for `Engine`. Shows nothing before its first call or off a terminal."""
    columns = TextColumn("capturing steps"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = None

        def show(done: int, total: int) -> None:
            nonlocal task
            if task is None:
                task = bar.add_task("", total=total)
            bar.update(task, completed=done)

        yield show


__all__ = ["capturing"]
