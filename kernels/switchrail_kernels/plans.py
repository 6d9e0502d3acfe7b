"""The plan of a decode for ops with a state, and a check of the forms of tables."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from switchrail.ops.adapter import is_plain
from switchrail.ops.backend import foreign
from switchrail.ops.batch import SequenceBatch, StateBatch
from switchrail.ops.contract import Contract


@dataclass(frozen=True, slots=True)
class Decode:
    """The plan of a decode, which has nothing to split. Its type marks the phase.

    Attributes:
        batch: The batch that the plan was made for.
    """

    batch: StateBatch

    @property
    def seqlens(self) -> tuple[int, ...]:
        """The lengths of the batch's sequences."""
        return self.batch.seqlens


def refresh_decode(
    contract: Contract, plan: object, batch: StateBatch, features: tuple[str, ...] = ()
) -> None:
    """Check that a decode's plan fits another batch. The plan needs no update.

    Raises:
        ArgumentError: The plan is not a `Decode`.
        ContractError: The batch is not a decode, or differs from the plan in the number of sequences.
    """
    if not isinstance(plan, Decode):
        raise foreign("plan", plan)
    contract.check_batch("decode", batch, features)
    if len(batch.seqlens) != len(plan.seqlens):
        raise contract.error(
            "batch.seqlens", f"{len(batch.seqlens)} sequences", f"{len(plan.seqlens)}, as in the plan"
        )


def check_forms(contract: Contract, batch: SequenceBatch, *, wide: Collection[str] = ()) -> None:
    """Refuse a batch that needs an `Adapter`, since the plan was made for a batch that needed none.

    Args:
        contract: The op's contract.
        batch: The batch.
        wide: Tables that may have gaps between rows.

    Raises:
        ContractError: The batch needs an adapter.
    """
    if not is_plain(batch, wide=wide):
        found = "tables or slots in another form than the plan's"
        raise contract.error(
            "batch", found, "as in the plan, dense tables, -1 as the null slot and read_only=False"
        )
