"""Checks of GPU abilities that engines need: graphs, asynchronous launches, streams, several devices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from switchrail.ops.backend import Backend
from switchrail.ops.batch import Bounds
from switchrail.ops.samples.sample import widened
from switchrail.testing.conformance.memory import Unavailable
from switchrail.testing.conformance.parts import caches, require_same_bits
from switchrail.testing.conformance.setting import RECURRENT, Measured, Setting
from switchrail.testing.inputs import Sample, run_reference

_CACHES = ((900, 3, 257), (700, 258, 900))
"""The cached tokens of each sequence, for two batches of an op with a paged cache."""

_WITHIN = Bounds(sequences=3, rows=3, tokens=900)
"""Bounds that both batches satisfy."""


def no_waiting(setting: Setting) -> None:
    """Checks that the host never waits for the device."""
    call = setting.call((70, 3, 9), padding=(1,))
    call.clone().run(setting.backend)
    with _refuse_waiting(setting):
        call.run(setting.backend)


def graph(setting: Setting) -> Measured:
    """Checks that a captured call can be replayed for another batch after `refresh`.

    Only `run` is captured, after a first run, with a plan that has bounds. A second capture must not request
    memory from the driver. Then the numbers in the call's tensors change, and so do the batch's lengths,
    slots and pages. As in an engine, `refresh` gets the new lengths of the host, and the batch's tensors
    change after it.
    """
    backend = setting.backend
    if type(backend).refresh is Backend.refresh:
        raise AssertionError(
            f"it claims cuda_graph, but {type(backend).__name__} has no `refresh`: without it a backend is "
            f"never captured in a graph"
        )
    first, second = _pair(setting)
    eager = second.clone()
    eager.bind(backend, backend.plan("decode", eager.batch, _WITHIN))()
    plan = backend.plan("decode", first.batch, _WITHIN)
    run = first.bind(backend, plan)
    stream = torch.cuda.Stream(setting.device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(setting.device))
    with torch.cuda.stream(stream):
        run()
    stream.synchronize()
    warm = torch.cuda.CUDAGraph()
    with torch.cuda.graph(warm, stream=stream):
        run()
    captured = torch.cuda.CUDAGraph()
    before = torch.cuda.memory_stats(setting.device)["num_device_alloc"]
    with torch.cuda.graph(captured, pool=warm.pool(), stream=stream):
        run()
    after = torch.cuda.memory_stats(setting.device)["num_device_alloc"]
    assert after == before, f"memory was requested from the driver {after - before} times during the capture"
    for name, tensor in second.tensors.items():
        own = first.tensors[name]
        if tensor is not None and own is not None:
            own.copy_(tensor)
    tables = {name: getattr(first.batch, name) for name in first.contract.batch}
    with _refuse_waiting(setting):
        backend.refresh(plan, replace(second.batch, **tables))
    for name, table in tables.items():
        table.copy_(getattr(second.batch, name))
    captured.replay()
    torch.cuda.synchronize(setting.device)
    require_same_bits(first, eager, "a replayed graph gives different results than a call")
    return setting.compare(eager, run_reference(second)) | setting.verify(second)


@contextmanager
def _refuse_waiting(setting: Setting) -> Iterator[None]:
    """Within the block, raises an error if the host waits for the device."""
    torch.cuda.synchronize(setting.device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def another_stream(setting: Setting) -> Measured:
    """Checks a call on a stream other than the default."""
    call = setting.call((70, 3, 9))
    stream = torch.cuda.Stream(setting.device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(setting.device))
    with torch.cuda.stream(stream):
        return setting.verify(call)


def another_device(setting: Setting) -> Measured:
    """Checks a call on a device that is not the current one."""
    count = torch.cuda.device_count()
    if count < 2:
        raise Unavailable("it needs a second device")
    index = torch.cuda.current_device()
    return setting.verify(setting.call((70, 3, 9), device=f"cuda:{(index + 1) % count}"))


def _pair(setting: Setting) -> tuple[Sample, Sample]:
    """Two decode calls with equal shapes and pool sizes, but different contents."""
    calls = []
    for seed in (0, 1):
        arguments: dict[str, Any] = {"padding": (seed,)}
        if setting.op not in RECURRENT:
            arguments = {"kv_lengths": _CACHES[seed]}
        calls.append(setting.call((1,) * 3, seed=seed, **arguments))
    first, second = calls
    for name in caches(first):
        size = max(len(call.tensor(name)) for call in calls)
        for call in calls:
            call.tensors[name] = widened(call.tensor(name), size)
    return first, second
