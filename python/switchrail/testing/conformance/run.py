"""Runs cases and records their outcomes."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass
from typing import Any, Literal

from switchrail.checks import shown
from switchrail.foreign import cut, encodable
from switchrail.plugins.place import failing_place
from switchrail.testing.conformance.cases import Case
from switchrail.testing.conformance.memory import Unavailable
from switchrail.testing.conformance.setting import Measured
from switchrail.testing.diagnosis import Mismatch
from switchrail.testing.summary import CaseResult

Status = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a case.

    Attributes:
        case: The case.
        status: Whether it passed; `skipped` if it can't be run here.
        measured: The measured error, if any.
        message: Why it failed or was skipped.
        traceback: The traceback of an exception other than an AssertionError; empty if there is none.
        causes: The causes found for the failure. Failures with the same cause have it in the same words.
        possible: Causes that the failure neither shows nor contradicts.
        seconds: The duration of the case.
    """

    case: Case
    status: Status
    measured: Measured | None
    message: str
    traceback: str
    causes: tuple[str, ...]
    possible: tuple[str, ...]
    seconds: float

    @property
    def result(self) -> CaseResult:
        """This outcome in the form that `summarise` takes."""
        return CaseResult(
            id=self.case.id,
            passed=self.status == "passed",
            causes=self.causes,
            possible=self.possible,
            traits=self.case.check.traits,
        )

    def to_dict(self) -> dict[str, Any]:
        """Converts the outcome to an object for the JSON output of `check-backend`."""
        measured = self.measured
        return {
            "id": self.case.id,
            "about": self.case.check.about,
            "status": self.status,
            "error": None if measured is None else {"norm": measured.error.norm, "row": measured.error.row},
            "bound": None if measured is None else {"norm": measured.bound.norm, "row": measured.bound.row},
            "note": "" if measured is None else measured.note,
            "message": self.message,
            "traceback": self.traceback,
            "causes": list(self.causes),
            "seconds": round(self.seconds, 4),
        }


def run_case(case: Case) -> Outcome:
    """Runs a case; any exception of the backend is a failure."""
    start = time.perf_counter()
    status: Status = "passed"
    measured: Measured | None = None
    message = trace = ""
    found: dict[str, tuple[str, ...]] = {"causes": (), "possible": ()}
    try:
        measured = case()
    except Unavailable as reason:
        status, message = "skipped", str(reason)
    except Exception as failure:
        status, found = "failed", causes_of(failure)
        if isinstance(failure, AssertionError):
            message = str(failure)
        else:  # `__str__` and `__repr__` of a backend's own exception may raise
            message = f"it raised {shown(failure, None)} ({failing_place(failure)})"
            trace = cut(encodable("".join(traceback.format_exception(failure))))
    return Outcome(
        case=case,
        status=status,
        measured=measured,
        message=message,
        traceback=trace,
        seconds=time.perf_counter() - start,
        **found,
    )


def causes_of(failure: Exception) -> dict[str, tuple[str, ...]]:
    """The fields `causes` and `possible` of an outcome, from the exception that the case raised."""
    if isinstance(failure, Mismatch):
        return {"causes": failure.causes, "possible": failure.possible}
    causes = () if isinstance(failure, AssertionError) else (f"it raised {type(failure).__name__}",)
    return {"causes": causes, "possible": ()}
