"""`switchrail doctor`: finds problems of this installation, with advice."""

from __future__ import annotations

from dataclasses import asdict

import typer

from switchrail.cli import flags
from switchrail.cli.logs import without_failures
from switchrail.cli.output import say
from switchrail.cli.show import print_json
from switchrail.foreign import one_line

WRONG = 1


def doctor(as_json: flags.Json = False) -> None:
    """Find problems of this installation, with advice; exit with 1 if there are any."""
    from switchrail.doctor import diagnose

    with without_failures():
        found = diagnose()
    if as_json:
        print_json([asdict(finding) for finding in found])
    else:
        for finding in found:
            mark = "problem" if finding.is_problem else "note"
            say(one_line(f"{mark}: {finding.check}, {finding.subject}: {finding.problem}"))
            say(f"    {one_line(finding.advice)}")
        if not any(finding.is_problem for finding in found):
            say("nothing is wrong")
    raise typer.Exit(WRONG if any(finding.is_problem for finding in found) else 0)
