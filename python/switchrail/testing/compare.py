"""Error measures that hide nothing, and the comparison of a backend with the float64 oracle."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from switchrail.ops.backend import Backend
from switchrail.ops.batch import CheckpointBatch, StateBatch
from switchrail.testing.inputs import REFERENCES, Call, run_reference


@dataclass(frozen=True, slots=True)
class Error:
    """How far a result lies from what was expected; infinitely far where either is not finite.

    Attributes:
        norm: The norm of the difference over the norm of what was expected.
        row: The largest norm of the difference in one row (along the last axis) over the norm of that row, or
            over `FLOOR` times the root mean square of all rows' norms where that is more.
    """

    norm: float
    row: float

    def within(self, bound: Error) -> bool:
        """Whether neither is more than its bound."""
        return self.norm <= bound.norm and self.row <= bound.row

    def __or__(self, other: Error) -> Error:
        """The larger of each."""
        return Error(max(self.norm, other.norm), max(self.row, other.row))

    def __str__(self) -> str:
        return f"{self.norm:.2e} / {self.row:.2e}"


FLOOR = 0.1
"""Rounding is relative to the terms of a sum, not to what is left of them, so a row whose terms cancel is
held to the size of the others. Rows of eight numbers or more seldom cancel this far; of one number, many do,
and `BOUNDS` are not for them where a backend rounds on its way.
"""

BOUNDS = {
    torch.float64: Error(1e-11, 1e-10),
    torch.float32: Error(2e-5, 2e-4),
    torch.float16: Error(2e-3, 1e-2),
    torch.bfloat16: Error(1e-2, 4e-2),
}
"""The largest error of a backend against the float64 oracle on the rounded inputs, for each dtype."""


def measure(actual: torch.Tensor, expected: torch.Tensor) -> Error:
    """Measures the error of `actual`, any shape and float dtype, against `expected` of the same shape.

    A norm below the dtype's smallest normal number, where fewer digits are kept, counts as that number.

    Raises:
        ValueError: The shapes differ.
    """
    if actual.shape != expected.shape:
        raise ValueError(f"the result has shape {list(actual.shape)}, expected was {list(expected.shape)}")
    if expected.numel() == 0:
        return Error(0.0, 0.0)
    a, e = actual.detach().cpu().double(), expected.detach().cpu().double()
    if not (a.isfinite().all() and e.isfinite().all()):
        return Error(float("inf"), float("inf"))
    difference = (a - e).norm(dim=-1)
    size = e.norm(dim=-1)
    if not size.any():
        worst = float("inf") if difference.any() else 0.0
        return Error(worst, worst)
    least = torch.finfo(actual.dtype).tiny
    floor = (FLOOR * size.square().mean().sqrt()).clamp_min(least)
    return Error(
        float(difference.norm() / size.norm().clamp_min(least)),
        float((difference / size.clamp_min(floor)).max()),
    )


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype hold the same bits, NaN included."""
    return torch.equal(a.flatten().contiguous().view(torch.uint8), b.flatten().contiguous().view(torch.uint8))


def verify(
    backend: Backend, call: Call, *, bound: Error | None = None, expected: Call | None = None
) -> Error:
    """Runs a backend on a copy of a call and holds all that it did against the oracle.

    Args:
        backend: The backend.
        call: The call; it is left alone.
        bound: The largest error; that of the call's dtype when left out.
        expected: The oracle's result, from `run_reference`; computed when left out.

    Returns:
        The error, the larger of the output's and the written states'.

    Raises:
        AssertionError: The error is beyond the bound, a row of padding is not zero, or anything was written
            that is not the call's to write.
    """
    expected = run_reference(call) if expected is None else expected
    bound = BOUNDS[call.out.dtype] if bound is None else bound
    actual = call.clone()
    actual.run(backend)
    if call.out.is_cuda:
        torch.cuda.synchronize(call.out.device)

    starts = call.batch.cu_seqlens.tolist()
    is_padding = torch.zeros(call.out.shape[0], dtype=torch.bool)
    for n in call.padding:
        is_padding[starts[n] : starts[n + 1]] = True
    error = Error(0.0, 0.0)
    for name, output in actual.outputs.items():
        result = output.cpu()
        nothing = -torch.inf if name == "lse" else 0
        assert (result[is_padding] == nothing).all(), (
            f"{call.op}: rows of padding in {name} are not {nothing}"
        )
        off = measure(result[~is_padding], expected.outputs[name][~is_padding])
        assert off.within(bound), f"{call.op}: {name} is off by {off}, the bound is {bound}"
        error |= off

    if "state" in call.tensors:
        assert isinstance(call.batch, StateBatch)
        written = torch.zeros(call.state.shape[0], dtype=torch.bool)
        if call.phase != "verify":
            written[_written(call)] = True
        state, before = actual.state.cpu(), call.state.cpu()
        assert same_bits(state[~written], before[~written]), (
            f"{call.op}: a slot was written that no sequence owns"
        )
        state_error = measure(state[written], expected.state[written])
        assert state_error.within(bound), (
            f"{call.op}: the state is off by {state_error}, the bound is {bound}"
        )
        error |= state_error

    for name, tensor in call.tensors.items():
        if tensor is not None and not call.contract.tensors[name].mutated:
            after = actual.tensors[name]
            assert after is not None
            whole, whole_after = _storage(tensor), _storage(after)
            assert torch.equal(whole, whole_after), f"{call.op}: {name} was modified"
    for name, given in call.batch_tensors.items():
        assert torch.equal(given, actual.batch_tensors[name]), f"{call.op}: batch.{name} was modified"
    return error


def verify_commit(backend: Backend, call: Call, *, bound: Error | None = None) -> Error:
    """Runs a verification, as `verify` does, and commits it with every number of accepted rows.

    Args:
        backend: The backend.
        call: A verification of an op with a state; it is left alone.
        bound: The largest error of the outputs and the states; that of the call's dtype when left out.

    Returns:
        The error, the largest of all.

    Raises:
        AssertionError: The error is beyond the bound, or anything was written that is not to be written.
    """
    bound = BOUNDS[call.out.dtype] if bound is None else bound
    error = verify(backend, call, bound=bound)
    oracle = call.to("cpu").double()
    expected = oracle.run(REFERENCES[call.op]())
    actual = call.clone()
    verification = actual.run(backend)
    assert expected is not None
    assert verification is not None
    # what commit needs must be its own: the caller may use its tensors again
    for name, tensor in actual.tensors.items():
        if tensor is not None and call.contract.tensors[name].axes[0] == "T":
            tensor.fill_(torch.nan)
    slots = _written(call)
    untouched = torch.ones(call.state.shape[0], dtype=torch.bool)
    untouched[slots] = False
    before = call.state.cpu()
    for last in range(-1, max(call.batch.seqlens, default=0)):
        accepted = torch.tensor([min(last, length - 1) for length in call.batch.seqlens], dtype=torch.int64)
        truth, state = oracle.state.clone(), call.clone().state
        expected.commit(accepted, truth)
        verification.commit(accepted.to(state.device), state)
        result = state.cpu()
        off = measure(result[slots], truth[slots])
        assert off.within(bound), (
            f"{call.op}: the state after row {last} is off by {off}, the bound is {bound}"
        )
        assert same_bits(result[untouched], before[untouched]), (
            f"{call.op}: the commit wrote a slot that no sequence owns"
        )
        error |= off
    return error


def _written(call: Call) -> list[int]:
    """The slots that a call may write."""
    assert isinstance(call.batch, StateBatch)
    batch = call.batch
    slots = zip(batch.write_slots.tolist(), batch.seqlens, strict=True)
    written = [slot for slot, length in slots if slot >= 0 and length]
    if isinstance(batch, CheckpointBatch):
        for kept, length in zip(batch.checkpoint_slots.tolist(), batch.seqlens, strict=True):
            written += [slot for slot in kept[: length // batch.checkpoint_every] if slot >= 0]
    return written


def _storage(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


__all__ = ["BOUNDS", "FLOOR", "Error", "measure", "same_bits", "verify", "verify_commit"]
