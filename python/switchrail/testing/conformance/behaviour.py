"""Checks of batches, and of relations between calls such as splitting, merging and repeating."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from switchrail.ops.batch import PagedBatch, StateBatch
from switchrail.ops.softmax import merge
from switchrail.testing.compare import Error, measure, same_bits
from switchrail.testing.conformance.bounds import BOUNDS, GROWTH
from switchrail.testing.conformance.parts import alone, caches, mismatch, require_same_bits, spoilt
from switchrail.testing.conformance.setting import GATED, RECURRENT, Measured, Setting
from switchrail.testing.diagnosis import Finding, Mismatch, Problem
from switchrail.testing.inputs import Sample, run_reference
from switchrail.testing.steps import run_in_steps

_LENGTHS = (40, 70, 3, 33)


def neighbours(setting: Setting) -> None:
    """Checks that NaN in one sequence does not change the results of other sequences by a single bit."""
    call = setting.call(_LENGTHS, **_from_states(setting))
    clean = setting.run(call)
    for n in range(len(_LENGTHS)):
        dirty = spoilt(call, n)
        dirty.run(setting.backend)
        for other in range(len(_LENGTHS)):
            if other != n:
                _same_sequence(clean, dirty, other, f"it depends on the data of sequence {n}")


def company(setting: Setting) -> Measured:
    """Checks that a sequence alone has the same result as in a batch, up to the order of sums."""
    invariant = "batch_invariant" in setting.subject.features
    # Other backends may split a long sequence in a way that depends on the batch.
    lengths = (*_LENGTHS, 1200) if invariant else _LENGTHS
    call = setting.call(lengths, **_from_states(setting))
    together = setting.run(call)
    bound = BOUNDS["company"][setting.dtype]
    worst = Measured(Error(0.0, 0.0), bound, "bit by bit")
    for n in range(len(lengths)):
        single = setting.run(alone(call, n))
        expected = alone(together, n)
        for name, result in single.results.items():
            other = expected.results[name]
            error = measure(result, other)
            if not error.within(bound):
                headline = (
                    f"{name} of sequence {n} alone is off by {error} from its result in the batch, "
                    f"the bound is {bound}"
                )
                cause = "a sequence gives a different result alone than in a batch"
                raise mismatch(single, name, result, other, headline, bound, cause=cause)
            note = worst.note if same_bits(result, other) else ""
            worst = Measured(worst.error | error, bound, note)
    if invariant:
        assert worst.note, "the backend claims batch_invariant, but a sequence alone has different bits"
    return worst


def again(setting: Setting) -> None:
    """Checks that a repeated call gives the same bits, even if several layers share one plan."""
    call = setting.call(_LENGTHS, padding=(1,))
    first, plan = call.clone(), setting.backend.plan(setting.phase, call.batch)
    first.run(setting.backend)
    for _ in range(2):
        second = call.clone()
        second.bind(setting.backend, plan)()
        require_same_bits(second, first, "repeating the call gives different bits")


def in_chunks(setting: Setting) -> Measured:
    """Checks that a prefill in chunks of different sizes gives the result of a single pass."""
    states: dict[str, Any] = {"initial": "some"} if setting.op in RECURRENT else {}
    call = setting.call((130, 1, 77), **states, seed=5)
    schedules = [
        [[64, 1, 0], [64, 0, 64], [2, 0, 13]],
        [[37, 0, 37]] * 2 + [[56, 1, 3]],
        [[1, 0, 0], [1, 0, 5], [128, 1, 72]],
    ]
    return _in_steps(setting, call, schedules)


def token_by_token(setting: Setting) -> Measured:
    """Checks that decoding token by token gives the result of a prefill."""
    steps = 12 if setting.quick else 40
    call = setting.call((steps,) * 3, phase="prefill", past=True, **_from_states(setting), seed=6)
    return _in_steps(setting, call, [[[1] * 3] * steps])


def growth(setting: Setting) -> Measured:
    """Checks that the error does not grow with the length of a sequence."""
    length = 512 if setting.quick else 4096
    arguments = _from_states(setting)
    if setting.op in GATED:
        arguments["gate"] = "near_one"
    call = setting.call((length,), **arguments)
    expected = run_reference(call)
    done = setting.run(call)
    bound = BOUNDS["usual"][setting.dtype]
    quarters = [
        measure(done.out[first : first + length // 4], expected.out[first : first + length // 4])
        for first in range(0, length, length // 4)
    ]
    for number, error in enumerate(quarters):
        if not error.within(bound):
            headline = f"quarter {number + 1} of 4 is off by {error}, the bound is {bound}"
            raise mismatch(call, "out", done.out, expected.out, headline, bound)
    first, last = max(quarters[0].norm, bound.norm / 100), quarters[-1].norm
    if last > GROWTH * first:
        headline = (
            f"the error of the last quarter is {last:.2e}, more than {GROWTH:g} times {first:.2e}, that of "
            f"the first quarter (or 1% of the bound, if larger)"
        )
        raise Mismatch([Problem(headline, (Finding("the error grows with the length of a sequence"),))])
    return Measured(quarters[-1], bound)


def following_slots(setting: Setting) -> Measured:
    """Checks slots with consecutive numbers, for which a backend may use a slice of the pool."""
    worst = Measured(Error(0.0, 0.0), BOUNDS["usual"][setting.dtype])
    for initial in ("all", "some", "none"):
        call = setting.call((9, 33, 1, 4), initial=initial, seed=8)
        assert isinstance(call.batch, StateBatch)
        state = torch.full_like(call.state, torch.nan)
        state[2:6] = call.state[call.batch.read_slots]
        slots = torch.arange(2, 6, device=call.out.device)
        batch = dataclasses.replace(call.batch, read_slots=slots, write_slots=slots)
        tensors = {**call.tensors, "state": state}
        worst |= setting.verify(dataclasses.replace(call, tensors=tensors, batch=batch))
    return worst


def trees(setting: Setting) -> Measured:
    """Checks drafted rows that form trees."""
    call = setting.call((5, 9, 0, 1), padding=(3,))
    return setting.verify(call.with_trees()) | setting.verify(call.with_trees(seed=1))


def checkpoints(setting: Setting) -> Measured:
    """Checks that states at regular intervals are stored, each in its own slot."""
    call = setting.call((70, 9, 0, 64), padding=(1,))
    worst = Measured(Error(0.0, 0.0), BOUNDS["usual"][setting.dtype])
    for every in (7, 16, 64):
        worst |= setting.verify(call.with_checkpoints(every))
    return worst


def shared_pages(setting: Setting) -> Measured:
    """Checks sequences that share pages, as sequences with a common prefix do."""
    call = setting.call((3, 1, 5), kv_lengths=(40, 40, 40))
    assert isinstance(call.batch, PagedBatch)
    call.batch.page_table[1:] = call.batch.page_table[0]
    return setting.verify(call)


def merged(setting: Setting) -> Measured:
    """Checks that attention over two parts of a cache, merged by log-sum-exp, equals a single pass."""
    lengths = (1,) * 4
    small = setting.call(lengths)
    page = small.tensor(caches(small)[0]).shape[1]
    pasts = [
        page * pages + extra for pages, extra in ((1, 1), (3, page), (8, 5 % page + 1), (2, 2 % page + 1))
    ]
    call = setting.call(lengths, kv_lengths=pasts, lse=True)
    whole = setting.run(call)
    assert isinstance(call.batch, PagedBatch)
    middles = [page, page, 5 * page, 2 * page]
    parts = []
    for start, stop in (([0] * 4, middles), (middles, pasts)):
        table = torch.zeros_like(call.batch.page_table)
        for n in range(4):
            pages = call.batch.page_table[n, start[n] // page : -(-stop[n] // page)]
            table[n, : len(pages)] = pages
        seen = tuple(b - a for a, b in zip(start, stop, strict=True))
        kv_lens = torch.tensor(seen, dtype=torch.int32, device=call.out.device)
        batch = dataclasses.replace(call.batch, page_table=table, kv_lens=kv_lens, kv_seqlens=seen)
        parts.append(setting.run(dataclasses.replace(call, batch=batch)))
    first, second = parts
    lse = [part.outputs["lse"] for part in parts]
    out, total = merge(first.out.to(lse[0].dtype), lse[0], second.out.to(lse[1].dtype), lse[1])
    bound = BOUNDS["usual"][setting.dtype]
    worst = Measured(Error(0.0, 0.0), bound)
    for name, result in (("out", out.to(whole.out.dtype)), ("lse", total)):
        error = measure(result, whole.outputs[name])
        if not error.within(bound):
            headline = f"merged {name} is off by {error} from that of a single pass, the bound is {bound}"
            raise mismatch(call, name, result, whole.outputs[name], headline, bound)
        worst |= Measured(error, bound)
    return worst


def _in_steps(setting: Setting, call: Sample, schedules: list[list[list[int]]]) -> Measured:
    expected = run_reference(call)
    worst = Measured(Error(0.0, 0.0), BOUNDS["usual"][setting.dtype])
    for schedule in schedules:
        worst |= setting.compare(run_in_steps(setting.backend, call, schedule, phase=setting.phase), expected)
    return worst


def _same_sequence(clean: Sample, dirty: Sample, n: int, why: str) -> None:
    for name, output in alone(clean, n).results.items():
        other = alone(dirty, n).results[name]
        if not same_bits(output, other):
            headline = f"{name} of sequence {n} differs: {why}"
            cause = "a sequence's result depends on other sequences"
            raise mismatch(alone(clean, n), name, other, output, headline, cause=cause)


def _from_states(setting: Setting) -> dict[str, Any]:
    return {"initial": "all"} if setting.op in RECURRENT else {}
