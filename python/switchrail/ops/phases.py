"""Implementations whose phases differ in the plan alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from switchrail.errors import ArgumentError
from switchrail.ops.backend import Backend


class OneRun(Backend):
    """The phases of an op, each of which is one and the same run."""

    @abstractmethod
    def run(self, *tensors: Any, **arguments: Any) -> Any:
        """Runs what `prefill`, `decode` or `verify` is given, as batch and plan say.

        Returns:
            The record of a verification.
        """

    def prefill(self, *tensors: Any, **arguments: Any) -> None:
        """Runs T packed tokens of N sequences of any length.

        Raises:
            ArgumentError: The backend plans, and there is no plan.
        """
        self._check_planned(arguments)
        self.run(*tensors, **arguments)

    def decode(self, *tensors: Any, **arguments: Any) -> None:
        """Runs one token a sequence."""
        self.run(*tensors, **arguments)

    def verify(self, *tensors: Any, **arguments: Any) -> Any:
        """Runs drafted tokens.

        Raises:
            ArgumentError: The backend plans, and there is no plan.
        """
        self._check_planned(arguments)
        return self.run(*tensors, **arguments)

    def _check_planned(self, arguments: Mapping[str, Any]) -> None:
        """Without a plan `run` would take the rows for those of a decode."""
        if arguments.get("plan") is None and type(self).plan is not Backend.plan:
            raise ArgumentError(
                "plan: got None; asked is what the backend's `plan` returned for this phase",
                argument="plan",
                found="None",
            )


__all__ = ["OneRun"]
