"""The plan of a decode, and the check of the plan that a call is given, for the ops with a state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from switchrail.ops.backend import foreign
from switchrail.ops.batch import StateBatch, VerifyBatch
from switchrail.ops.contract import Contract


class Planned(Protocol):
    """A plan that knows the lengths it was made for."""

    @property
    def seqlens(self) -> tuple[int, ...]:
        """The lengths of its batch's sequences."""


@dataclass(frozen=True, slots=True)
class Decode:
    """The plan of a decode, in which nothing is cut: it tells the phase.

    Attributes:
        sequences: N.
    """

    sequences: int

    @property
    def seqlens(self) -> tuple[int, ...]:
        """One token of each."""
        return (1,) * self.sequences


def refresh_decode(contract: Contract, plan: object, batch: StateBatch) -> None:
    """Checks that a plan is one for decodes such as the batch, for which nothing has to be filled.

    Raises:
        ArgumentError: The plan is another phase's.
        ContractError: The batch is no decode, or has another number of sequences.
    """
    if not isinstance(plan, Decode):
        raise foreign("plan", plan)
    contract.check_batch("decode", batch)
    if len(batch.seqlens) != plan.sequences:
        raise contract.error(
            "batch.seqlens", f"{len(batch.seqlens)} sequences", f"{plan.sequences}, as the plan has"
        )


def check_plan(
    plan: object, batch: StateBatch, made: tuple[type[Planned], ...], verify: type[Planned] | None = None
) -> None:
    """Refuses a plan that was made by another backend, or for another phase or other lengths.

    Args:
        plan: The plan.
        batch: The batch.
        made: What the backend's plans are but for verification.
        verify: What those are; None where the backend has no such phase.

    Raises:
        ArgumentError: It is not the batch's.
    """
    kinds = made
    if isinstance(batch, VerifyBatch):
        kinds = () if verify is None else (verify,)
    if not isinstance(plan, kinds) or plan.seqlens != batch.seqlens:
        raise foreign("plan", plan)


__all__ = ["Decode", "Planned", "check_plan", "refresh_decode"]
