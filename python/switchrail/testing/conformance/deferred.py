"""The check of verifications that are committed by the next verification."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from switchrail.ops.batch import DeferredBatch, VerifyBatch, fields_of
from switchrail.ops.samples.random import Random
from switchrail.testing.compare import Error, measure
from switchrail.testing.conformance.bounds import BOUNDS
from switchrail.testing.conformance.setting import Measured, Setting
from switchrail.testing.diagnosis import Finding, Mismatch, Problem
from switchrail.testing.inputs import Sample

_LENGTHS = ((5, 3, 1, 4), (2, 5, 4, 1), (3, 0, 2, 5), (0, 0, 0, 0))
"""The rows of each sequence in successive verifications; the last one only commits."""

_MOST = 5


def deferred_commit(setting: Setting) -> Measured:
    """Checks verifications that each commit the previous one, with the sequences in changing order."""
    calls = [
        setting.call(lengths, initial="all", padding=(2,), seed=n).with_trees(seed=n)
        for n, lengths in enumerate(_LENGTHS)
    ]
    contract, first = calls[0].contract, calls[0].tensors
    of_layer = {name: first[name] for name in contract.kept if name in first}
    calls = [dataclasses.replace(call, tensors={**call.tensors, **of_layer}) for call in calls]
    pool, layer = calls[0].state.clone(), calls[0].made.layer
    layer = dataclasses.replace(layer, state=pool)
    expected = calls[0].to("cpu").double().state
    home = calls[0].batch
    assert isinstance(home, VerifyBatch)
    slots = home.read_slots
    accepted = torch.full((len(slots),), -1)
    paths = torch.zeros(len(slots), _MOST, dtype=torch.bool)
    backend, reference = setting.backend, setting.definition.reference()
    worst = Measured(Error(0.0, 0.0), BOUNDS["usual"][setting.dtype])
    for number, call in enumerate(calls):
        order = torch.tensor([(n + number) % len(slots) for n in range(len(slots))])
        call = _in_order(call, slots, order)
        batch = call.batch
        assert isinstance(batch, VerifyBatch)
        by_slot = order.to(slots.device)
        # Each slot has two records, which its verifications use in turn.
        even, has_slot = 2 * torch.arange(len(slots)), slots.cpu() >= 0
        pending = torch.where((accepted >= 0) & has_slot, even + (number + 1) % 2, -1)
        records = torch.where(has_slot, even + number % 2, -1)
        made = DeferredBatch(
            **fields_of(batch, VerifyBatch),
            pending_records=pending.to(slots.device)[by_slot],
            pending_rows=paths.to(slots.device)[by_slot],
            records=records.to(slots.device)[by_slot],
            record_count=2 * len(slots),
        )
        backend.run(call.made._replace(layer=layer), made, backend.plan("verify", made))

        oracle = call.to("cpu").double()
        oracle.tensors["state"] = expected
        verification = oracle.run(reference)
        worst |= _compare(f"verification {number + 1}", call.out, oracle.out, worst.bound)
        written = slots[slots >= 0]
        worst |= _compare(
            f"the states in verification {number + 1}", pool[written], expected[written.cpu()], worst.bound
        )
        chosen, paths = _accept(batch.seqlens, batch.parents.tolist(), order, number)
        accepted = torch.full((len(slots),), -1)
        accepted[order] = chosen
        assert verification is not None
        verification.commit(chosen, expected)
    return worst


def _in_order(call: Sample, slots: torch.Tensor, order: torch.Tensor) -> Sample:
    """The call with its sequences on the slots `slots[order]`, and `has_initial_state` True."""
    own = slots[order.to(slots.device)]
    assert isinstance(call.batch, VerifyBatch)
    batch = dataclasses.replace(
        call.batch, read_slots=own, write_slots=own, has_initial_state=torch.ones_like(own, dtype=torch.bool)
    )
    return dataclasses.replace(call, batch=batch)


def _accept(
    lengths: Sequence[int], parents: Sequence[int], order: torch.Tensor, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """A random accepted row of each sequence (-1 for no rows), and for each slot a mask of the row's path."""
    random, start = Random(seed).uniform(len(lengths)).tolist(), 0
    paths = torch.zeros(len(lengths), _MOST, dtype=torch.bool)
    chosen = []
    for n, length in enumerate(lengths):
        row = int(random[n] * length) if length else -1
        chosen.append(row)
        while row >= 0:
            paths[order[n], row] = True
            row = parents[start + row]
        start += length
    return torch.tensor(chosen), paths


def _compare(what: str, found: torch.Tensor, expected: torch.Tensor, bound: Error) -> Measured:
    error = measure(found, expected)
    if not error.within(bound):
        headline = f"{what}: off by {error}, the bound is {bound}"
        raise Mismatch([Problem(headline, (Finding("a deferred commit differs from a commit"),))])
    return Measured(error, bound)
