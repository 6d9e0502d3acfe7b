"""Backends that wrap other backends of their op."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from switchrail.ops.backend import AnyBackend, Backend, foreign
from switchrail.ops.batch import Bounds, Phase, SequenceBatch
from switchrail.ops.steps import Call, forwarded


class Wrapper(Backend[Any, Any]):
    """A backend that wraps other backends (its parts), and has every optional step that a part has."""

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, AnyBackend]:
        """The parts by name."""

    @abstractmethod
    def inside(self, plan: Any, batch: Any) -> tuple[str, Any, Any]:
        """The name of the part that made a plan, the part's own plan, and the batch as the part takes it."""

    def optional_steps(self) -> Mapping[str, Call]:
        """The optional steps of all parts."""
        steps = {name: part.optional_steps() for name, part in self.parts.items()}
        return forwarded(steps, self.inside)


@dataclass(frozen=True, slots=True)
class Delegated:
    """A plan, and the part that made it.

    Attributes:
        part: The part's name.
        plan: The part's own plan.
    """

    part: str
    plan: Any


class Delegate(Wrapper):
    """A backend that sends each batch to one of several backends of the same op.

    A subclass sets `op`, and passes its parts to the constructor.

    Args:
        parts: The backends to choose from, by name.
        choose: Returns the name of the part that serves a phase and batch.
        config: The configuration.
    """

    def __init__(
        self, parts: Mapping[str, AnyBackend], choose: Callable[[Phase, Any], str], config: object = None
    ) -> None:
        super().__init__(config)
        self._parts = dict(parts)
        self._choose = choose

    @property
    def parts(self) -> Mapping[str, AnyBackend]:
        """The parts by name."""
        return self._parts

    def inside(self, plan: Any, batch: Any) -> tuple[str, Any, Any]:
        """See the base class."""
        if not isinstance(plan, Delegated):
            raise foreign("plan", plan)
        return plan.part, plan.plan, batch

    def plan(self, phase: Phase, batch: SequenceBatch, bounds: Bounds | None = None) -> Delegated:
        """Plan with the chosen part."""
        name = self._choose(phase, batch)
        return Delegated(name, self._parts[name].plan(phase, batch, bounds))

    def refresh(self, plan: Any, batch: SequenceBatch) -> None:
        """Refresh with the part that made the plan."""
        part, own, batch = self.inside(plan, batch)
        self._parts[part].refresh(own, batch)

    def run(self, call: Any, batch: SequenceBatch, plan: Any) -> Any:
        """Run a call with the part that made the plan."""
        part, own, batch = self.inside(plan, batch)
        return self._parts[part].run(call, batch, own)

    def commit(self, call: Any, batch: Any, plan: Any, record: Any, accepted: torch.Tensor) -> None:
        """Commit with the part that made the plan."""
        part, own, batch = self.inside(plan, batch)
        self._parts[part].commit(call, batch, own, record, accepted)
