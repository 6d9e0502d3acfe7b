"""The conformance suite: compares any backend with the float64 oracle over its op's contract.

`switchrail check-backend NAME` runs it; `switchrail.testing.backend_test` makes a pytest function from it.
The cases follow from the contract and from the capabilities that the backend's registration claims.
"""

from __future__ import annotations

from switchrail.testing.conformance.bounds import BOUNDS
from switchrail.testing.conformance.cases import Case, LeftOut, Selection, select, select_named
from switchrail.testing.conformance.memory import Unavailable
from switchrail.testing.conformance.run import Outcome, run_case
from switchrail.testing.conformance.setting import Measured, Setting
from switchrail.testing.conformance.subject import Subject

__all__ = [
    "BOUNDS",
    "Case",
    "LeftOut",
    "Measured",
    "Outcome",
    "Selection",
    "Setting",
    "Subject",
    "Unavailable",
    "run_case",
    "select",
    "select_named",
]
