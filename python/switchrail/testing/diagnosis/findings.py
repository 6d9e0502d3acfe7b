"""The problems that a failed comparison found, and the findings about each problem."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact about a failure.

    Attributes:
        cause: The cause. Failures with the same cause have it in the same words, because a summary groups
            failures by cause. Empty if the finding only describes this failure.
        detail: The details of this failure.
        is_whole: Whether the finding explains the whole failure, so that no other diagnoser needs to run.
        possible: Causes that this failure neither shows nor contradicts; other failures may show them.
    """

    cause: str
    detail: str = ""
    is_whole: bool = False
    possible: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ": ".join(part for part in (self.cause, self.detail) if part)


@dataclass(frozen=True, slots=True)
class Problem:
    """A sentence that says what is wrong with a call, and the findings about the cause."""

    headline: str
    findings: tuple[Finding, ...] = ()

    def __str__(self) -> str:
        return "\n  ".join([self.headline, *filter(None, map(str, self.findings))])


class Mismatch(AssertionError):
    """A backend failed a check.

    Attributes:
        problems: All problems of the call.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))

    @property
    def causes(self) -> tuple[str, ...]:
        """The distinct causes that were found, in order."""
        return _unique(finding.cause for problem in self.problems for finding in problem.findings)

    @property
    def possible(self) -> tuple[str, ...]:
        """The causes that are neither shown nor contradicted, each once, in order."""
        findings = (finding for problem in self.problems for finding in problem.findings)
        return _unique(cause for finding in findings for cause in finding.possible)


def _unique(causes: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(cause for cause in causes if cause))
