"""Check of the plan that a call is given, for the ops with a state."""

from __future__ import annotations

from typing import Protocol

from switchrail.ops.backend import foreign
from switchrail.ops.batch import StateBatch, VerifyBatch


class Planned(Protocol):
    """A plan that knows the lengths it was made for."""

    @property
    def seqlens(self) -> tuple[int, ...]:
        """The lengths of its batch's sequences."""


def check_plan(
    plan: object, batch: StateBatch, prefill: type[Planned] | None, verify: type[Planned] | None
) -> None:
    """Refuses a plan that was made by another backend, or for another phase or other lengths.

    Args:
        plan: The plan; None is that of decode.
        batch: The batch.
        prefill: What a prefill's plans are; None where the backend has no such phase.
        verify: What a verification's are, likewise.

    Raises:
        ArgumentError: It is not the batch's.
    """
    if plan is None:
        fits = batch.seqlens.count(1) == len(batch.seqlens) and not isinstance(batch, VerifyBatch)
    else:
        made = verify if isinstance(batch, VerifyBatch) else prefill
        fits = made is not None and isinstance(plan, made) and plan.seqlens == batch.seqlens
    if not fits:
        raise foreign("plan", plan)


__all__ = ["Planned", "check_plan"]
