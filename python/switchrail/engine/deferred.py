"""Commits of captured verifications that are left to the next one."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from switchrail.ops.batch import DeferredBatch, VerifyBatch


class DeferredCommits:
    """The records of verified rows that no verification has applied yet, by the slot of a sequence.

    Each slot has two records. A verification applies one of them and fills the other. The accepted rows of
    the filled record are applied by the next verification. Steps of other kinds need up-to-date states, so
    all records are applied before such a step.

    Attributes:
        count: The number of records.
        batch: A batch without rows: running it applies all records.
    """

    def __init__(self, *, slots: int, width: int, device: torch.device) -> None:
        """Allocate the tables.

        Args:
            slots: The number of slots, including the reserved one.
            width: Maximum rows per sequence in a verification.
            device: The device of the model.
        """
        self.count = 2 * slots
        self._records = torch.full((slots,), -1, dtype=torch.int64, device=device)
        self._rows = torch.zeros(slots, width, dtype=torch.bool, device=device)
        owners = torch.arange(slots, dtype=torch.int64, device=device)
        owners[0] = -1  # no sequence has slot 0
        self.batch = DeferredBatch(
            cu_seqlens=torch.zeros(slots + 1, dtype=torch.int32, device=device),
            seqlens=(0,) * slots,
            read_slots=owners,
            write_slots=owners,
            has_initial_state=torch.ones(slots, dtype=torch.bool, device=device),
            parents=torch.zeros(0, dtype=torch.int32, device=device),
            parent_rows=(),
            pending_records=self._records,
            pending_rows=self._rows,
            records=torch.full_like(self._records, -1),
            record_count=self.count,
        )

    def take(self, slots: torch.Tensor, batch: DeferredBatch) -> None:
        """Fill the tables of a batch. The records that its verification applies are then no longer pending.

        Args:
            slots: [N] int64, the slot of each sequence; -1 for padding.
            batch: The batch, whose tables have fixed addresses.
        """
        owners, is_real = slots.clamp(min=0), slots >= 0
        pending = self._records[owners].where(is_real, -1)
        batch.pending_records.copy_(pending)
        batch.pending_rows.copy_(self._rows[owners])
        batch.records.copy_((2 * owners + (pending == 2 * owners)).where(is_real, -1))
        self._records.index_fill_(0, owners, -1)

    def leave(self, slots: torch.Tensor, batch: DeferredBatch, accepted: torch.Tensor) -> None:
        """Leave accepted rows to the next verification.

        Args:
            slots: As in `take`.
            batch: As in `take`.
            accepted: [N, width] bool.
        """
        owners = slots.clamp(min=0)
        self._records[owners] = batch.records
        self._rows[owners] = accepted

    def clear(self) -> None:
        """Mark all records as applied."""
        self._records.fill_(-1)

    def defer(self, batch: VerifyBatch, records: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> Any:
        """A batch of verified rows that applies records first.

        Args:
            batch: The rows.
            records: Its `pending_records`, `pending_rows` and `records`, which `take` fills.
        """
        pending, rows, own = records
        given: dict[str, Any] = {one.name: getattr(batch, one.name) for one in fields(VerifyBatch)}
        return DeferredBatch(
            **given, pending_records=pending, pending_rows=rows, records=own, record_count=self.count
        )
