"""Splits one call into several, as chunked prefill and decoding do."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from switchrail.ops.backend import AnyBackend
from switchrail.ops.batch import PagedBatch, Phase, StateBatch, sequences
from switchrail.testing.inputs import Sample


def run_in_steps(
    backend: AnyBackend, call: Sample, schedule: Sequence[Sequence[int]], phase: Phase = "prefill"
) -> Sample:
    """Makes a prefill call of N sequences in several steps.

    Args:
        backend: The backend.
        call: The whole call, in which each sequence reads the slot that it writes. It is not modified.
        schedule: For each step, the number of rows of each sequence. The numbers must add up to all rows.
        phase: The phase of each step.

    Returns:
        A copy of the call with the output and the state after the last step.

    Raises:
        ValueError: The schedule doesn't take all rows of each sequence.
    """
    if [sum(taken) for taken in zip(*schedule, strict=True)] != list(call.batch.seqlens):
        raise ValueError(f"the schedule takes {schedule}, the sequences have {call.batch.seqlens} rows")
    whole = call.clone()
    cursor = call.batch.cu_seqlens[:-1].tolist()
    for counts in schedule:
        rows = [
            row for start, count in zip(cursor, counts, strict=True) for row in range(start, start + count)
        ]
        cursor = [start + count for start, count in zip(cursor, counts, strict=True)]
        index = torch.tensor(rows, dtype=torch.int64, device=call.out.device)
        tensors = {
            name: t[index] if t is not None and call.contract.tensors[name].axes[0] == "T" else t
            for name, t in whole.tensors.items()
        }
        step = dataclasses.replace(call, phase=phase, tensors=tensors, batch=_batch(call, counts, cursor))
        step.run(backend)
        for name, output in whole.outputs.items():
            output[index] = step.outputs[name]
    return whole


def _batch(call: Sample, counts: Sequence[int], cursor: Sequence[int]) -> StateBatch | PagedBatch:
    """The batch of a step, which takes `counts` rows of each sequence, up to its row in `cursor`."""
    batch = call.batch
    device = batch.cu_seqlens.device
    if isinstance(batch, StateBatch):
        before = torch.tensor(cursor) - torch.tensor(counts)
        began = before > batch.cu_seqlens[:-1].cpu()
        return dataclasses.replace(
            batch,
            **sequences(tuple(counts), device),
            has_initial_state=batch.has_initial_state | began.to(device),
        )
    assert isinstance(batch, PagedBatch)
    ends = batch.cu_seqlens[1:].tolist()
    kv_seqlens = tuple(kv - (end - at) for kv, end, at in zip(batch.kv_seqlens, ends, cursor, strict=True))
    return dataclasses.replace(
        batch,
        **sequences(tuple(counts), device),
        kv_lens=torch.tensor(kv_seqlens, dtype=torch.int32, device=batch.kv_lens.device),
        kv_seqlens=kv_seqlens,
    )
