"""Implementations whose phases differ in the plan alone."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from switchrail.ops.backend import Backend, foreign
from switchrail.ops.batch import Phase


class OneRun(Backend):
    """The phases of an op, each of which is one and the same run.

    Each phase raises an `ArgumentError` where its plan is none that the backend makes for it.
    """

    plan_types: ClassVar[dict[Phase, type]] = {"prefill": object, "decode": object, "verify": object}
    """What `plan` returns for each phase, by which `run` knows what it is to run."""

    @abstractmethod
    def run(self, *tensors: Any, **arguments: Any) -> Any:
        """Runs what `prefill`, `decode` or `verify` is given, as batch and plan say.

        Returns:
            The record of a verification.
        """

    def prefill(self, *tensors: Any, **arguments: Any) -> None:
        """Runs T packed tokens of N sequences of any length."""
        if not isinstance(plan := arguments.get("plan"), self.plan_types["prefill"]):
            raise foreign("plan", plan)
        self.run(*tensors, **arguments)

    def decode(self, *tensors: Any, **arguments: Any) -> None:
        """Runs one token a sequence."""
        if not isinstance(plan := arguments.get("plan"), self.plan_types["decode"]):
            raise foreign("plan", plan)
        self.run(*tensors, **arguments)

    def verify(self, *tensors: Any, **arguments: Any) -> Any:
        """Runs drafted tokens."""
        if not isinstance(plan := arguments.get("plan"), self.plan_types["verify"]):
            raise foreign("plan", plan)
        return self.run(*tensors, **arguments)


__all__ = ["OneRun"]
