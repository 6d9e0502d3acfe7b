"""`switchrail lock`: records the distributions that have plugins, and the digests of their files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from switchrail.cli import flags
from switchrail.cli.output import say
from switchrail.cli.show import print_json
from switchrail.foreign import in_lines
from switchrail.lock import lock_differences, write_lock
from switchrail.variables import LOCK

DIFFERS = 1

OutputOption = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", envvar=LOCK, help="The lock file.")
]
CheckOption = Annotated[
    bool,
    typer.Option(
        "--check",
        help="Write nothing; print how the installation differs from the lock, and exit with 1 if it does.",
    ),
]


def lock(
    output: OutputOption = Path("switchrail.lock"), check: CheckOption = False, as_json: flags.Json = False
) -> None:
    """Record the installed plugins in a file. If SWITCHRAIL_LOCK names it, only these plugins are loaded."""
    if check:
        differences = lock_differences(output)
        if as_json:
            print_json([difference.to_dict() for difference in differences])
        else:
            told = "\n".join(str(difference) for difference in differences)
            say(in_lines(told) or "the installation matches the lock")
        raise typer.Exit(DIFFERS if differences else 0)
    written = write_lock(output)
    if as_json:
        print_json(written.to_dict())
    else:
        say(in_lines(f"{output}: {', '.join(written.distributions)}"))
