"""Running the cases, and what came of each."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

from switchrail.testing.conformance.cases import Case
from switchrail.testing.conformance.memory import Unavailable
from switchrail.testing.conformance.setting import Measured

Status = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a case.

    Attributes:
        case: The case.
        status: Whether it held; `skipped` where it can't be run here.
        measured: What was measured, where something was.
        message: Why it failed or was skipped.
        seconds: How long it took.
    """

    case: Case
    status: Status
    measured: Measured | None
    message: str
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """As one object of the JSON document."""
        measured = self.measured
        return {
            "id": self.case.id,
            "about": self.case.check.about,
            "status": self.status,
            "error": None if measured is None else {"norm": measured.error.norm, "row": measured.error.row},
            "bound": None if measured is None else {"norm": measured.bound.norm, "row": measured.bound.row},
            "note": "" if measured is None else measured.note,
            "message": self.message,
            "seconds": round(self.seconds, 4),
        }


def run_case(case: Case) -> Outcome:
    """Runs a case; whatever the backend raises is a failure."""
    start = time.perf_counter()
    status: Status = "passed"
    measured: Measured | None = None
    message = ""
    try:
        measured = case()
    except Unavailable as reason:
        status, message = "skipped", str(reason)
    except AssertionError as failure:
        status, message = "failed", str(failure)
    except Exception as error:
        status, message = "failed", f"it raised {error!r}"
    return Outcome(
        case=case, status=status, measured=measured, message=message, seconds=time.perf_counter() - start
    )


__all__ = ["Outcome", "Status", "run_case"]
