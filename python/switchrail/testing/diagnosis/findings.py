"""What a failure says: problems, and what was found out about each."""

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
    """

    cause: str
    detail: str = ""
    is_whole: bool = False

    def __str__(self) -> str:
        return ": ".join(part for part in (self.cause, self.detail) if part)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and what was found out about it."""

    headline: str
    findings: tuple[Finding, ...] = ()

    def __str__(self) -> str:
        return "\n  ".join([self.headline, *map(str, self.findings)])


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
        found = (finding.cause for problem in self.problems for finding in problem.findings)
        return tuple(dict.fromkeys(cause for cause in found if cause))


__all__ = ["Finding", "Mismatch", "Problem"]
