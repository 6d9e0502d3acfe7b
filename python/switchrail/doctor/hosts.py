"""Checks the other engines that are installed."""

from __future__ import annotations

from collections.abc import Iterator

from switchrail.doctor.finding import Finding
from switchrail.hosts import installed


def check_hosts() -> Iterator[Finding]:
    """Reports, as notes, the engines in which Switchrail's backends can't serve."""
    for host, version in installed():
        problem = host.problem(version)
        if problem is not None:
            advice = "run the model in Switchrail's engine, or in an engine that docs/bridges.md lists"
            text = f"no backend serves in {host.name} {version}: {problem}"
            yield Finding("engines", host.name, text, advice, is_problem=False)
