"""Calls that are made again, on a GPU: what is remembered of them must not lead to another result."""

import dataclasses

import pytest
import torch
from switchrail.errors import ContractError
from switchrail.testing.compare import same_bits, verify
from switchrail_kernels import launch, replay
from switchrail_kernels.attention.triton import TritonAttention
from switchrail_kernels.mla.triton import TritonMla

from .gpu_calls import OPS, attention, mla

pytestmark = pytest.mark.gpu

PHASES = pytest.mark.parametrize("phase", ["prefill", "decode"])


def bound(backend, call, plan=None):
    """Makes a call, with a plan of its own unless one is given."""
    plan = backend.plan(call.phase, call.batch) if plan is None else plan
    named = {n: t for n, t in call.tensors.items() if n not in call.contract.positional}
    positional = [call.tensors[n] for n in call.contract.positional]
    getattr(backend, call.phase)(*positional, **named, **call.options, batch=call.batch, plan=plan)


@pytest.mark.parametrize(("make", "backend"), OPS)
@PHASES
def test_a_repeated_call_launches_without_triton(make, backend, phase, monkeypatch):
    backend = backend()
    call = make(phase, 0)
    for _ in range(2):
        bound(backend, call.clone())
    expected, repeated = call.clone(), call.clone()
    bound(backend, expected)

    def launched(*arguments, **options):
        raise AssertionError("launched by Triton")

    monkeypatch.setattr(launch.Launcher, "__call__", launched)
    bound(backend, repeated)
    assert same_bits(repeated.out, expected.out)


@pytest.mark.parametrize(("make", "backend"), OPS)
@PHASES
def test_repeated_on_two_streams_at_once(make, backend, phase):
    backend = backend()
    calls = [make(phase, seed) for seed in (0, 1)]
    expected = [call.clone() for call in calls]
    for call in expected:
        bound(backend, call)
        bound(backend, call.clone())
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in calls]
    copies = [[call.clone() for _ in range(20)] for call in calls]
    plans = [[backend.plan(phase, call.batch) for call in many] for many in copies]
    torch.cuda.synchronize()
    for i in range(20):
        for stream, many, planned in zip(streams, copies, plans, strict=True):
            with torch.cuda.stream(stream):
                bound(backend, many[i], planned[i])
    torch.cuda.synchronize()
    for many, right in zip(copies, expected, strict=True):
        for call in many:
            assert same_bits(call.out, right.out)


@pytest.mark.parametrize(("make", "backend"), OPS)
@PHASES
def test_what_a_profiler_hooks_is_not_launched_past_it(make, backend, phase):
    backend = backend()
    call = make(phase, 0)
    for _ in range(2):
        bound(backend, call.clone())
    seen = []
    hook = replay.knobs.runtime.launch_enter_hook
    hook.add(seen.append)
    try:
        bound(backend, call.clone())
    finally:
        hook.remove(seen.append)
    torch.cuda.synchronize()
    assert 1 <= len(seen) <= 5


@pytest.mark.parametrize(("make", "backend"), OPS)
@PHASES
def test_a_wrong_call_is_refused_where_a_right_one_is_remembered(make, backend, phase):
    backend = backend()
    call = make(phase, 0)
    for _ in range(2):
        bound(backend, call.clone())
    first = call.contract.positional[0]
    for name, tensor in call.tensors.items():
        if tensor is None or name in call.contract.mutated:
            continue
        for wrong in (tensor.double(), tensor[None], tensor.cpu(), [tensor], None):
            if wrong is None and call.contract.tensors[name].optional:
                continue
            broken = dataclasses.replace(call.clone(), batch=call.batch)
            plan = backend.plan(phase, broken.batch)
            out = broken.out.clone()
            broken.tensors[name] = wrong
            with pytest.raises(ContractError, match=f"{name}|{first}"):
                bound(backend, broken, plan)
            assert same_bits(broken.out, out)


@pytest.mark.parametrize(
    ("make", "backend"),
    [pytest.param(attention, TritonAttention, id="attention"), pytest.param(mla, TritonMla, id="mla")],
)
@PHASES
def test_a_page_table_without_room_is_refused_where_its_shape_is_remembered(make, backend, phase):
    backend = backend()
    call = make(phase, 0)
    for _ in range(2):
        bound(backend, call.clone())
    batch = call.batch
    room = batch.page_table.shape[1] * call.tensors[call.contract.positional[-1]].shape[1]
    longer = dataclasses.replace(batch, kv_seqlens=(room + 1, *batch.kv_seqlens[1:]))
    copy = dataclasses.replace(call.clone(), batch=longer)
    with pytest.raises(ContractError, match="page_table"):
        bound(backend, copy)


@pytest.mark.parametrize(("make", "backend"), OPS)
@PHASES
def test_a_remembered_call_is_right_for_other_numbers(make, backend, phase):
    backend = backend()
    for seed in (0, 0, 1, 1, 2):
        verify(backend, make(phase, seed))
