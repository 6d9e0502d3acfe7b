"""Commits of captured verifications that are left to the next verification."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from switchrail.ops.batch import DeferredBatch, VerifyBatch


class DeferredCommits:
    """The commits that remain to be done, at most one per slot.

    A backend records the inputs of verified rows (such as keys and values), and applies the accepted rows to
    the state later. Each slot has two records. A verification applies the accepted rows of one record, and
    fills the other one. Steps of other kinds need up-to-date states, so all pending records are applied
    before such a step.

    Attributes:
        count: The number of records.
        records: [slots] int64, the record that remains to be applied; -1 for none.
        rows: [slots, width] bool, the accepted rows of that record.
        batch: A batch without rows: running it applies the pending record of each slot.
    """

    def __init__(self, *, slots: int, width: int, device: torch.device) -> None:
        """Allocate the tables.

        Args:
            slots: The number of slots, including the reserved one.
            width: Maximum rows per sequence in a verification.
            device: The device of the model.
        """
        self.count = 2 * slots
        self.records = torch.full((slots,), -1, dtype=torch.int64, device=device)
        self.rows = torch.zeros(slots, width, dtype=torch.bool, device=device)
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
            pending_records=self.records,
            pending_rows=self.rows,
            records=torch.full_like(self.records, -1),
            record_count=self.count,
        )

    def clear(self) -> None:
        """Mark all records as applied."""
        self.records.fill_(-1)

    def defer(self, batch: VerifyBatch, records: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> Any:
        """The batch of a verification that first applies the pending records.

        Args:
            batch: The rows to verify.
            records: The result's `pending_records`, `pending_rows` and `records`, which the operation
                `VerifyRows` fills.
        """
        pending, rows, own = records
        given: dict[str, Any] = {one.name: getattr(batch, one.name) for one in fields(VerifyBatch)}
        return DeferredBatch(
            **given, pending_records=pending, pending_rows=rows, records=own, record_count=self.count
        )
