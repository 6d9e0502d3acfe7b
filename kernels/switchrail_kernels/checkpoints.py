"""The checkpoints of a prefill as kernel arguments."""

from __future__ import annotations

import torch
from switchrail.ops.batch import CheckpointBatch, StateBatch


def kept_states(batch: StateBatch) -> tuple[torch.Tensor, int, int]:
    """The checkpoints' slots, the rows between checkpoints, and the slots per sequence.

    Without checkpoints these are `write_slots`, 0 and 0.
    """
    if isinstance(batch, CheckpointBatch):
        return batch.checkpoint_slots, batch.checkpoint_every, batch.checkpoint_slots.shape[1]
    return batch.write_slots, 0, 0
