"""Makes a command's engine, with a progress bar on the terminal while its steps are captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

import switchrail
from switchrail.cli.show import progress_bar

if TYPE_CHECKING:
    from switchrail import Engine


@contextmanager
def capturing(console: Console) -> Iterator[Callable[[int, int], None]]:
    """Yields the callback `progress` for `Engine`. On a terminal, the callback shows a progress bar."""
    with progress_bar(console) as bar:
        task = None

        def show(done: int, total: int) -> None:
            nonlocal task
            if task is None:
                task = bar.add_task("capturing steps", total=total)
            bar.update(task, completed=done)

        yield show


def make_engine(told: Console, checkpoint: Path, **options: Any) -> Engine:
    """Makes an engine with the options of `Engine`. A progress bar on `told` shows its captures."""
    with capturing(told) as progress:
        return switchrail.Engine(checkpoint, progress=progress, **options)
