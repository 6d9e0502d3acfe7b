"""The problems of a failure, and the findings about each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found out.

    Attributes:
        cause: The same words for every failure of this kind, by which a summary groups them; empty for what
            only describes this one.
        detail: What is particular to this failure.
        is_whole: Whether it explains all of the failure, so that nothing more is asked.
        possible: Causes that other failures may show, and that this one neither shows nor contradicts.
    """

    cause: str
    detail: str = ""
    is_whole: bool = False
    possible: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ": ".join(part for part in (self.cause, self.detail) if part)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and the findings about it."""

    headline: str
    findings: tuple[Finding, ...] = ()

    def __str__(self) -> str:
        return "\n  ".join([self.headline, *filter(None, map(str, self.findings))])


class Mismatch(AssertionError):
    """A backend did something else than its contract asks.

    Attributes:
        problems: Everything that is wrong with the call.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))

    @property
    def causes(self) -> tuple[str, ...]:
        """The causes that were found, each once, in order."""
        return _unique(finding.cause for problem in self.problems for finding in problem.findings)

    @property
    def possible(self) -> tuple[str, ...]:
        """The causes that are neither shown nor contradicted, each once, in order."""
        findings = (finding for problem in self.problems for finding in problem.findings)
        return _unique(cause for finding in findings for cause in finding.possible)


def _unique(causes: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(cause for cause in causes if cause))


__all__ = ["Finding", "Mismatch", "Problem"]
