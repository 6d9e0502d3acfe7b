"""Implementations whose phases differ in the plan alone."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

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
        """Runs T packed tokens of N sequences of any length."""
        self.run(*tensors, **arguments)

    def decode(self, *tensors: Any, **arguments: Any) -> None:
        """Runs one token a sequence."""
        self.run(*tensors, **arguments)

    def verify(self, *tensors: Any, **arguments: Any) -> Any:
        """Runs drafted tokens."""
        return self.run(*tensors, **arguments)


__all__ = ["OneRun"]
