"""Calls made from others: one sequence alone, one sequence spoilt."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from switchrail.ops.batch import PagedBatch, StateBatch, VerifyBatch
from switchrail.testing.diagnosis import Finding, Mismatch, Problem, diagnose, of_output, of_states
from switchrail.testing.inputs import Sample
from switchrail.testing.measure import Error, same_bits

EXACT = Error(0.0, 0.0)
"""The bound where bits are compared."""


def rows_of(call: Sample, n: int) -> slice:
    """The packed rows of a sequence."""
    first = sum(call.batch.seqlens[:n])
    return slice(first, first + call.batch.seqlens[n])


def token_inputs(call: Sample) -> list[str]:
    """The names of the inputs with a row a token."""
    specs = call.contract.tensors
    return [
        name
        for name, tensor in call.tensors.items()
        if tensor is not None and specs[name].axes[0] == "T" and not specs[name].mutated
    ]


def alone(call: Sample, n: int) -> Sample:
    """The call of one sequence of a call, on the same memory."""
    rows = rows_of(call, n)
    specs = call.contract.tensors
    tensors = {
        name: tensor[rows] if tensor is not None and specs[name].axes[0] == "T" else tensor
        for name, tensor in call.tensors.items()
    }
    length = call.batch.seqlens[n]
    fields: dict[str, Any] = {
        name: getattr(call.batch, name)[n : n + 1].contiguous()
        for name, spec in call.contract.batch.items()
        if spec.axes[0] == "N"
    }
    fields["cu_seqlens"] = torch.tensor([0, length], dtype=torch.int32, device=call.out.device)
    fields["seqlens"] = (length,)
    if isinstance(call.batch, VerifyBatch):
        fields["parents"] = call.batch.parents[rows]
        fields["parent_rows"] = call.batch.parent_rows[rows]
    if isinstance(call.batch, PagedBatch):
        fields["kv_seqlens"] = call.batch.kv_seqlens[n : n + 1]
    return dataclasses.replace(
        call,
        tensors=tensors,
        batch=dataclasses.replace(call.batch, **fields),
        padding=frozenset({0} if n in call.padding else ()),
    )


def spoilt(call: Sample, n: int) -> Sample:
    """A copy in which everything that belongs to one sequence alone is NaN."""
    copy = call.clone()
    for name in token_inputs(copy):
        tensor = copy.tensors[name]
        assert tensor is not None
        tensor[rows_of(copy, n)] = torch.nan
    if isinstance(copy.batch, StateBatch):
        copy.state[copy.batch.read_slots[n]] = torch.nan
    if isinstance(copy.batch, PagedBatch):
        for name in caches(copy):
            cache = copy.tensors[name]
            assert cache is not None
            used = -(-copy.batch.kv_seqlens[n] // cache.shape[1])
            cache[copy.batch.page_table[n, :used].long()] = torch.nan
    return copy


def caches(call: Sample) -> list[str]:
    """The names of the pools of pages."""
    return [name for name, spec in call.contract.tensors.items() if spec.axes[0] == "pages"]


def require_same_bits(actual: Sample, expected: Sample, cause: str) -> None:
    """Requires that two calls have written the same bits; `cause` explains a difference.

    Raises:
        Mismatch: They have not.
    """
    for name, result in actual.results.items():
        if not same_bits(result, expected.results[name]):
            raise mismatch(actual, name, result, expected.results[name], f"{name} differs", cause=cause)


def mismatch(
    call: Sample,
    name: str,
    got: torch.Tensor,
    expected: torch.Tensor,
    headline: str,
    bound: Error = EXACT,
    *,
    cause: str = "",
) -> Mismatch:
    """The error for a result of a call that differs from another call's.

    Args:
        call: The call.
        name: The tensor's name.
        got: What it has.
        expected: What the other one has.
        headline: What is wrong.
        bound: The largest error.
        cause: As a `Finding` has it, where there is one already.
    """
    if name == "state":
        found = diagnose(of_states(call, call.written_slots, got, expected, bound, is_oracles=False))
    else:
        found = diagnose(of_output(call, name, got, expected, bound, is_oracles=False))
    known = (Finding(cause),) if cause else ()
    return Mismatch([Problem(headline, (*known, *found))])


__all__ = ["alone", "caches", "mismatch", "require_same_bits", "rows_of", "spoilt", "token_inputs"]
