"""Parts of the checks: calls derived from another call, and errors for wrong results."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from switchrail.ops.batch import PagedBatch, StateBatch, VerifyBatch
from switchrail.testing.diagnosis import Finding, Mismatch, Problem, diagnose, of_output, of_states
from switchrail.testing.inputs import Sample
from switchrail.testing.measure import Error, same_bits

EXACT = Error(0.0, 0.0)
"""The bound for bitwise comparisons."""


def rows_of(call: Sample, n: int) -> slice:
    """The packed rows of sequence `n`."""
    first = sum(call.batch.seqlens[:n])
    return slice(first, first + call.batch.seqlens[n])


def token_inputs(call: Sample) -> list[str]:
    """The names of the inputs with one row per token."""
    specs = call.contract.tensors
    return [
        name
        for name, tensor in call.tensors.items()
        if tensor is not None and specs[name].axes[0] == "T" and not specs[name].mutated
    ]


def alone(call: Sample, n: int) -> Sample:
    """The call with sequence `n` only, on the same memory."""
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
        parents = call.batch.parent_rows
        fields["parent_rows"] = None if parents is None else parents[rows]
    if isinstance(call.batch, PagedBatch):
        fields["kv_seqlens"] = call.batch.kv_seqlens[n : n + 1]
    return dataclasses.replace(
        call,
        tensors=tensors,
        batch=dataclasses.replace(call.batch, **fields),
        padding=frozenset({0} if n in call.padding else ()),
    )


def spoilt(call: Sample, n: int) -> Sample:
    """A copy in which the inputs, the initial state and the cached tokens of sequence `n` are NaN."""
    copy = call.clone()
    for name in token_inputs(copy):
        copy.tensor(name)[rows_of(copy, n)] = torch.nan
    if isinstance(copy.batch, StateBatch):
        copy.state[copy.batch.read_slots[n]] = torch.nan
    if isinstance(copy.batch, PagedBatch):
        for name in caches(copy):
            cache = copy.tensor(name)
            used = -(-copy.batch.kv_seqlens[n] // cache.shape[1])
            cache[copy.batch.page_table[n, :used].long()] = torch.nan
    return copy


def caches(call: Sample) -> list[str]:
    """The names of the paged caches."""
    return [name for name, spec in call.contract.tensors.items() if spec.axes[0] == "pages"]


def require_same_bits(actual: Sample, expected: Sample, cause: str) -> None:
    """Checks that two calls wrote the same bits. `cause` is the cause to report if the bits differ.

    Raises:
        Mismatch: The bits differ.
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
    """The error for a result that differs from the expected one.

    Args:
        call: The call.
        name: The tensor's name.
        got: The tensor.
        expected: The expected tensor.
        headline: The problem in words.
        bound: The largest allowed error.
        cause: The cause to report, if it is known.
    """
    if name in call.written:
        found = diagnose(of_states(call, call.written[name], got, expected, bound, is_oracles=False))
    else:
        found = diagnose(of_output(call, name, got, expected, bound, is_oracles=False))
    known = (Finding(cause),) if cause else ()
    return Mismatch([Problem(headline, (*known, *found))])
