"""A pytest plugin that prints one summary of all failures of `backend_test` at the end of a test run.

`backend_test` registers the plugin. Under pytest-xdist the controlling process runs no test, so it must be
given the plugin on the command line: `-p switchrail.testing.pytest_summary`.
"""

from __future__ import annotations

from typing import Any

from switchrail.testing.summary import CaseResult, summarise

PROPERTY = "switchrail_case"
"""The key under which a test records its case for the summary."""


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Writes the summary."""
    results = []
    for status in ("passed", "failed"):
        for report in terminalreporter.stats.get(status, ()):
            if getattr(report, "when", None) != "call":
                continue
            for name, value in report.user_properties:
                if name == PROPERTY:
                    told = {each: tuple(value[each]) for each in ("causes", "possible", "traits")}
                    passed = status == "passed"
                    results.append(CaseResult(id=value["id"], passed=passed, **told))
    lines = summarise(results)
    if lines:
        terminalreporter.write_sep("=", "switchrail check-backend")
        for line in lines:
            terminalreporter.write_line(line)
