"""A finding and the advice for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, or a note.

    Attributes:
        check: The name of the check, such as `metadata` or `hooks`.
        subject: The variable, distribution, plugin, hook, backend or other object that the finding concerns.
        problem: The problem, or the text of the note.
        advice: The recommended action.
        is_problem: Whether action is needed; False for a note.
    """

    check: str
    subject: str
    problem: str
    advice: str
    is_problem: bool = True
