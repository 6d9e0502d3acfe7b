"""Summarises the failures of a run: shared causes, and traits that only failed or only passed cases have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_MOST_CAUSES = 12
_MOST_IDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """The result of a case.

    Attributes:
        id: The case's id: op, phase, dtype and check.
        passed: Whether it passed.
        causes: The causes found for its failure. Failures with the same cause have it in the same words.
        possible: Causes that the case neither shows nor contradicts, for example because all its rows are
            wrong.
        traits: Properties of the case, such as `gate=one`.
    """

    id: str
    passed: bool
    causes: tuple[str, ...] = ()
    possible: tuple[str, ...] = ()
    traits: tuple[str, ...] = ()

    @property
    def facets(self) -> tuple[str, ...]:
        """All properties that cases can share: op, phase, dtype and traits."""
        return (*self.id.split("/")[:3], *self.traits)


def summarise(results: Sequence[CaseResult]) -> list[str]:
    """The lines of the summary; none if all cases passed."""
    failed = [result for result in results if not result.passed]
    if not failed:
        return []
    lines = [f"{len(failed)} {'failure' if len(failed) == 1 else 'failures'}, by cause:"]
    groups = list(_groups(failed))
    for causes, ids in groups[:_MOST_CAUSES]:
        which = "all" if len(ids) == len(failed) > 1 else f"{len(ids)}"
        rest = f" and {len(ids) - _MOST_IDS} more" if len(ids) > _MOST_IDS else ""
        named = f" ({', '.join(ids[:_MOST_IDS])}{rest})"
        lines.append(f"  {which}: {'; '.join(causes)}{named}")
    if len(groups) > _MOST_CAUSES:
        lines.append(f"  and {len(groups) - _MOST_CAUSES} further causes")
    lines += (f"  {line}" for line in _facets(failed, [result for result in results if result.passed]))
    return lines


def _groups(failed: Sequence[CaseResult]) -> Iterator[tuple[list[str], list[str]]]:
    """Pairs of causes and the ids of the failures that are listed under them, most failures first."""
    shown = Counter(cause for result in failed for cause in result.causes)
    found: dict[str, list[str]] = {}
    for result in failed:
        possible = sorted((cause for cause in result.possible if cause in shown), key=lambda c: -shown[c])
        for cause in result.causes or possible[:1] or ("no cause was found",):
            found.setdefault(cause, []).append(result.id)
    together: dict[tuple[str, ...], list[str]] = {}
    for cause, ids in found.items():
        together.setdefault(tuple(ids), []).append(cause)
    for same in sorted(together, key=len, reverse=True):
        yield together[same], list(same)


def _facets(failed: Sequence[CaseResult], passed: Sequence[CaseResult]) -> Iterator[str]:
    """Lines about facets that all failed and no passed cases have, and about facets of passed cases only."""
    if not passed:
        return
    every = [set(result.facets) for result in failed]
    among_passed = {facet for result in passed for facet in result.facets}
    common = [facet for facet in failed[0].facets if all(facet in facets for facets in every)]
    only = [facet for facet in common if facet not in among_passed]
    if only and len(failed) > 1:
        yield f"all {len(failed)} failing cases have {', '.join(only)}, and no passing case does"
    counts = Counter(facet for result in passed for facet in result.facets)
    for facet, count in counts.most_common():
        if count > 1 and not any(facet in facets for facets in every):
            yield f"all {count} cases with {facet} pass"
