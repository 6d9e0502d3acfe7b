"""One thing that is wrong, and what to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or worth knowing.

    Attributes:
        check: What was looked at.
        subject: What it is about: a variable, a distribution, a plugin, a hook, a device.
        problem: What is wrong.
        advice: What to do.
        is_problem: Whether anything has to be done; else it is only worth knowing.
    """

    check: str
    subject: str
    problem: str
    advice: str
    is_problem: bool = True
