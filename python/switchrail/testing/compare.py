"""Compares a backend with the oracle, the op's float64 reference."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from switchrail.ops.backend import AnyBackend
from switchrail.ops.batch import StateBatch
from switchrail.testing.diagnosis import (
    Finding,
    Mismatch,
    Problem,
    changed_input,
    diagnose,
    of_output,
    of_states,
    stray_slots,
)
from switchrail.testing.inputs import REFERENCES, Sample, run_reference
from switchrail.testing.measure import BOUNDS, FLOOR, Error, measure, same_bits


def verify(
    backend: AnyBackend, call: Sample, *, bound: Error | None = None, expected: Sample | None = None
) -> Error:
    """Runs a backend on a copy of a call and compares everything that it wrote with the oracle.

    Args:
        backend: The backend.
        call: The call; it is not modified.
        bound: The largest allowed error; by default the bound for the call's dtype.
        expected: The oracle's result, from `run_reference`; computed if not given.

    Returns:
        The largest error of any output and of the written states.

    Raises:
        AssertionError: The error exceeds the bound, a padding row is not zero (-inf in `lse`), or the backend
            wrote to memory that the call must not change.
    """
    expected = run_reference(call) if expected is None else expected
    bound = BOUNDS[call.out.dtype] if bound is None else bound
    actual = call.clone()
    actual.run(backend)
    if call.out.is_cuda:
        torch.cuda.synchronize(call.out.device)

    problems = [*_changed_inputs(call, actual)]
    error = Error(0.0, 0.0)

    def rerun(again: Sample) -> Sample:
        again.run(backend)
        return again

    is_padding = torch.tensor(
        [n in call.padding for n, length in enumerate(call.batch.seqlens) for _ in range(length)],
        dtype=torch.bool,
    )
    for name, output in actual.outputs.items():
        result = output.cpu()
        nothing = -torch.inf if name == "lse" else 0
        if not (result[is_padding] == nothing).all():
            problems.append(_padding_problem(call, name, result, is_padding, nothing))
        off = measure(result[~is_padding], expected.outputs[name][~is_padding])
        if not off.within(bound):
            found = diagnose(of_output(call, name, result, expected.outputs[name], bound, rerun=rerun))
            problems.append(Problem(f"{call.op}: {name} is off by {off}, the bound is {bound}", found))
        error |= off

    for name, slots in call.written.items():
        state, before, right = (each.tensor(name).cpu() for each in (actual, call, expected))
        stray = _changed_slots(before, state, [*slots, *_spare(call)])
        if stray:
            findings = stray_slots(call, stray, state.double(), right, bound)
            problems.append(
                Problem(f"{call.op}: a slot was written that the call must not write", tuple(findings))
            )
        if not same_bits(_gaps(call.tensor(name)), _gaps(actual.tensor(name))):
            finding = Finding(f"numbers are written between the slots of {name}")
            problems.append(Problem(f"{call.op}: {name} was written between its slots", (finding,)))
        off = measure(state[slots], right[slots])
        if not off.within(bound):
            states = of_states(
                call, slots, state[slots], right[slots], bound, before=before[slots], rerun=rerun
            )
            headline = f"{call.op}: the state is off by {off}, the bound is {bound}"
            problems.append(Problem(headline, diagnose(states)))
        error |= off
    if problems:
        raise Mismatch(problems)
    return error


def verify_commit(backend: AnyBackend, call: Sample, *, bound: Error | None = None) -> Error:
    """Verifies drafted rows as `verify` does, then commits with each possible last accepted row.

    Args:
        backend: The backend.
        call: A call in the phase verify, of an op with a state. It is not modified.
        bound: The largest allowed error of outputs and states; by default the bound for the call's dtype.

    Returns:
        The largest error.

    Raises:
        AssertionError: The error exceeds the bound, or the backend wrote to memory that the call must not
            change.
    """
    bound = BOUNDS[call.out.dtype] if bound is None else bound
    oracle = call.to("cpu").double()
    expected = oracle.run(REFERENCES[call.op]())
    error = verify(backend, call, bound=bound, expected=oracle)
    actual = call.clone()
    verification = actual.run(backend)
    assert expected is not None
    assert verification is not None
    # `commit` must not need the call's tensors, because the caller may reuse them
    for name, tensor in actual.tensors.items():
        if tensor is not None and call.contract.tensors[name].axes[0] == "T":
            tensor.fill_(torch.nan)
    slots = call.written_slots
    before = call.state.cpu()
    lasts = range(-1, max(call.batch.seqlens, default=0))
    accepted = {last: _accepted(call, last) for last in lasts}
    truths = {}
    for last in lasts:
        truths[last] = oracle.state.clone()
        expected.commit(accepted[last], truths[last])
    state = call.clone().state
    may_change = [*slots, *_spare(call)]
    for last in lasts:
        state.copy_(call.state)
        verification.commit(accepted[last].to(state.device), state)
        result = state.cpu()
        problems = []
        off = measure(result[slots], truths[last][slots])
        if not off.within(bound):
            others = {
                f"the state after the row {side} the accepted one": truths[other][slots]
                for side, other in (("after", last + 1), ("before", last - 1))
                if other in truths
            }
            found = diagnose(
                of_states(
                    call,
                    slots,
                    result[slots],
                    truths[last][slots],
                    bound,
                    before=before[slots],
                    others=others,
                    is_oracles=False,
                )
            )
            headline = f"{call.op}: the state after row {last} is off by {off}, the bound is {bound}"
            problems.append(Problem(headline, found))
        stray = _changed_slots(before, result, may_change)
        if stray:
            findings = stray_slots(call, stray, result.double(), truths[last], bound)
            headline = f"{call.op}: the commit wrote a slot that it must not write"
            problems.append(Problem(headline, tuple(findings)))
        if problems:
            raise Mismatch(problems)
        error |= off
    return error


def _spare(call: Sample) -> list[int]:
    """The slots that the call may overwrite with arbitrary values."""
    return [0] if isinstance(call.batch, StateBatch) and call.batch.read_only else []


def _gaps(pool: torch.Tensor) -> torch.Tensor:
    """The parts of a pool's storage that the pool's slots don't cover."""
    whole = torch.empty(0, dtype=pool.dtype, device=pool.device).set_(pool.untyped_storage()).cpu()
    outside = torch.ones(len(whole), dtype=torch.bool)
    outside.as_strided(pool.shape, pool.stride(), pool.storage_offset()).fill_(False)
    return whole[outside]


def _accepted(call: Sample, last: int) -> torch.Tensor:
    return torch.tensor([min(last, length - 1) for length in call.batch.seqlens], dtype=torch.int64)


def _changed_inputs(call: Sample, actual: Sample) -> Iterator[Problem]:
    """A problem for each input, and for each tensor of the batch, that the call modified."""
    inputs = {
        name: (tensor, after)
        for name, tensor in call.tensors.items()
        if (after := actual.tensors[name]) is not None
        and tensor is not None
        and not call.contract.tensors[name].mutated
        and not torch.equal(_storage(tensor), _storage(after))
    }
    # If several views share a buffer, the views with changed numbers are reported. If there are none, because
    # only memory beside the views has changed, one view is reported.
    inside = {name: pair for name, pair in inputs.items() if not same_bits(*pair)}
    for name, (tensor, after) in (inside or dict(list(inputs.items())[:1])).items():
        yield Problem(f"{call.op}: {name} was modified", tuple(changed_input(call, name, tensor, after)))
    for name, given in call.batch_tensors.items():
        after = actual.batch_tensors[name]
        if not torch.equal(given, after):
            findings = changed_input(call, name, given, after)
            yield Problem(f"{call.op}: batch.{name} was modified", tuple(findings))


def _changed_slots(before: torch.Tensor, after: torch.Tensor, written: list[int]) -> list[int]:
    """The slots that changed although the call must not write them."""
    untouched = torch.ones(len(before), dtype=torch.bool)
    untouched[written] = False
    if same_bits(after[untouched], before[untouched]):
        return []
    return [
        slot for slot in untouched.nonzero().flatten().tolist() if not same_bits(after[slot], before[slot])
    ]


def _padding_problem(
    call: Sample, name: str, result: torch.Tensor, is_padding: torch.Tensor, nothing: float
) -> Problem:
    bad = (result != nothing) & is_padding.view(-1, *[1] * (result.ndim - 1))
    cause = (
        "rows of padding are never written" if result[bad].isnan().all() else "rows of padding are written"
    )
    first = bad.nonzero()[0].tolist()
    detail = f"first at row {first[0]} of the batch: got {float(result[tuple(first)]):.6g}"
    return Problem(f"{call.op}: rows of padding in {name} are not {nothing}", (Finding(cause, detail),))


def _storage(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


__all__ = ["BOUNDS", "FLOOR", "Error", "measure", "same_bits", "verify", "verify_commit"]
