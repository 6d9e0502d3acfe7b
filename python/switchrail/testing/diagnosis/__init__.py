"""Diagnosis of a failure: the first wrong place, and mistakes that would explain the numbers.

It runs only after a comparison has failed. A diagnoser is a function from a `Difference` to a `Finding` or
None; `diagnose` calls the diagnosers, the most specific ones first.
"""

from __future__ import annotations

from switchrail.testing.diagnosis.difference import Difference, count, of_output, of_states
from switchrail.testing.diagnosis.findings import Finding, Mismatch, Problem
from switchrail.testing.diagnosis.memory import changed_input, stray_slots
from switchrail.testing.diagnosis.report import diagnose

__all__ = [
    "Difference",
    "Finding",
    "Mismatch",
    "Problem",
    "changed_input",
    "count",
    "diagnose",
    "of_output",
    "of_states",
    "stray_slots",
]
