"""The plan of a decode, for the ops with a state."""

from __future__ import annotations

from dataclasses import dataclass

from switchrail.ops.backend import foreign
from switchrail.ops.batch import StateBatch
from switchrail.ops.contract import Contract


@dataclass(frozen=True, slots=True)
class Decode:
    """The plan of a decode, which splits nothing; its type marks the phase.

    Attributes:
        sequences: N.
    """

    sequences: int

    @property
    def seqlens(self) -> tuple[int, ...]:
        """One token per sequence."""
        return (1,) * self.sequences


def refresh_decode(
    contract: Contract, plan: object, batch: StateBatch, features: tuple[str, ...] = ()
) -> None:
    """Check that a decode's plan fits the batch; there is nothing to update.

    Raises:
        ArgumentError: The plan is another phase's.
        ContractError: The batch is not a decode, or has another number of sequences.
    """
    if not isinstance(plan, Decode):
        raise foreign("plan", plan)
    contract.check_batch("decode", batch, features)
    if len(batch.seqlens) != plan.sequences:
        raise contract.error(
            "batch.seqlens", f"{len(batch.seqlens)} sequences", f"{plan.sequences}, as in the plan"
        )


__all__ = ["Decode", "refresh_decode"]
