"""Makes backends with a deliberate mistake, and the conformance suite's cases for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from switchrail.testing.conformance import Subject, select
from switchrail.testing.conformance.cases import Case


def sabotaged(backend: type[Any], then: Callable[..., None]) -> Any:
    """A backend of this class that runs `then` with the arguments of each call after the call."""

    class Sabotaged(backend):  # type: ignore[misc]
        def run(self, call: Any, batch: Any, plan: Any) -> None:
            super().run(call, batch, plan)
            then(**call._asdict(), state=call.layer.state, batch=batch)

    return Sabotaged()


def case_of(registration: Any, case: str, build: Callable[[], Any], **selection: Any) -> Case:
    """The conformance case with this id, for the backend that `build` makes instead of the registered one."""
    op, phase, dtype, _ = case.split("/")
    subject = Subject(
        op=op,
        name="mutant",
        phases=tuple(registration.phases),
        capabilities=registration.capabilities,
        build=build,
    )
    cases = select(subject, phases=(phase,), dtypes=(dtype,), **selection).cases
    (found,) = [each for each in cases if each.id == case]
    return found
