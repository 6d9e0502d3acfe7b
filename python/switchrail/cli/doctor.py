"""`switchrail doctor`: what is wrong in this installation, and what to do."""

from __future__ import annotations

from dataclasses import asdict

import typer

from switchrail.cli.choices import JsonOption
from switchrail.cli.logs import failures_shown
from switchrail.cli.output import say
from switchrail.cli.show import print_json
from switchrail.foreign import one_line

WRONG = 1


def doctor(as_json: JsonOption = False) -> None:
    """Look for what is wrong in this installation, and say what to do; exit with 1 where anything is."""
    from switchrail.doctor import diagnose

    with failures_shown():
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
