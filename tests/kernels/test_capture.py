"""Captured graphs are replayed with other values. Calls launch few kernels and don't wait for them."""

import dataclasses
from contextlib import contextmanager

import pytest
import torch
from switchrail.ops.batch import Bounds
from switchrail.testing import inputs
from switchrail.testing.compare import same_bits, verify
from switchrail_kernels import segments
from switchrail_kernels.attention.triton import TritonAttention
from switchrail_kernels.gated_delta.triton import TritonGatedDelta
from switchrail_kernels.kda.triton import TritonKda
from switchrail_kernels.lightning.triton import TritonLightning
from switchrail_kernels.mamba2.triton import TritonMamba2
from switchrail_kernels.mla.triton import TritonMla
from switchrail_kernels.segments import Segments
from switchrail_kernels.short_conv.triton import TritonShortConv

pytestmark = pytest.mark.gpu


def attention(phase, seed):
    lengths = [1] * 3 if phase == "decode" else [70, 3, 9]
    kv = [900, 3, 257] if seed == 0 else [700, 258, 900]
    return inputs.attention_call(
        lengths, kv_lengths=kv, phase=phase, dtype=torch.bfloat16, device="cuda", seed=seed
    )


def mla(phase, seed):
    lengths = [1] * 3 if phase == "decode" else [70, 3, 9]
    kv = [900, 3, 257] if seed == 0 else [700, 258, 900]
    sizes = {"heads": 16, "latent_size": 512, "rope_size": 64, "absorbed": True}
    options = {"dtype": torch.bfloat16, "device": "cuda", "seed": seed}
    return inputs.mla_call(lengths, kv_lengths=kv, phase=phase, **sizes, **options)


def stateful(make):
    def call(phase, seed):
        lengths = [1] * 3 if phase == "decode" else [70, 3, 9]
        options = {"dtype": torch.bfloat16, "device": "cuda", "seed": seed}
        return make(lengths, phase=phase, initial="all", padding=(seed,), **options)

    return call


OPS = [
    pytest.param(attention, TritonAttention, id="attention"),
    pytest.param(stateful(inputs.gated_delta_call), TritonGatedDelta, id="gated_delta"),
    pytest.param(stateful(inputs.kda_call), TritonKda, id="kda"),
    pytest.param(stateful(inputs.lightning_call), TritonLightning, id="lightning"),
    pytest.param(stateful(inputs.mamba2_call), TritonMamba2, id="mamba2"),
    pytest.param(stateful(inputs.short_conv_call), TritonShortConv, id="short_conv"),
    pytest.param(mla, TritonMla, id="mla"),
]


def every_call(test):
    """Parametrizes a test by op and phase."""
    by_phase = pytest.mark.parametrize("phase", ["prefill", "decode"])
    return pytest.mark.parametrize(("make", "backend"), OPS)(by_phase(test))


def _replace(target, source):
    """Copy the values of one call and its batch into another call's tensors, as far as they fit."""
    for name, tensor in source.tensors.items():
        if tensor is not None and target.tensors[name].shape == tensor.shape:
            target.tensors[name].copy_(tensor)
    for name in source.contract.batch:
        new, old = getattr(source.batch, name), getattr(target.batch, name)
        old[..., : new.shape[-1]].copy_(new[..., : old.shape[-1]])


WITHIN = Bounds(sequences=3, rows=3, tokens=900)


@contextmanager
def no_waiting():
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("known", [False, True], ids=["new-layer", "known-layer"])
@pytest.mark.parametrize(("make", "backend"), OPS)
def test_a_captured_decode_is_replayed_with_other_numbers_lengths_and_slots(make, backend, known):
    """With a new layer, the capture launches kernels one by one. With a known layer, it repeats the launches
    that an earlier call recorded."""
    backend = backend()
    first, second = make("decode", 0), make("decode", 1)
    for name in ("k_cache", "v_cache", "kv_cache"):
        if name in first.tensors:
            # gives both calls pools of one size, because `_replace` copies only tensors of equal shape
            size = max(first.tensors[name].shape[0], second.tensors[name].shape[0])
            for call in (first, second):
                old = call.tensors[name]
                call.tensors[name] = old.new_full((size, *old.shape[1:]), torch.nan)
                call.tensors[name][: old.shape[0]] = old
    plan = backend.plan("decode", first.batch, WITHIN)
    run = first.bind(backend, plan)
    warm = run if known else first.clone().bind(backend, plan)
    warm()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        run()
    with no_waiting():
        backend.refresh(plan, second.batch)
    _replace(first, second)
    graph.replay()
    eager = second.clone()
    eager.bind(backend, backend.plan("decode", eager.batch, WITHIN))()
    torch.cuda.synchronize()
    assert same_bits(first.out, eager.out)
    if "state" in first.tensors:
        assert same_bits(first.state, eager.state)
    verify(backend, second)


@every_call
def test_the_host_never_waits(make, backend, phase):
    backend = backend()
    call = make(phase, 0)
    call.clone().run(backend)
    with no_waiting():
        call.run(backend)


@every_call
def test_at_most_three_launches(make, backend, phase):
    backend = backend()
    call = make(phase, 0)
    call.clone().run(backend)
    plan = backend.plan(phase, call.batch)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call.bind(backend, plan)()
        torch.cuda.synchronize()
    launched = [
        event.name for event in profile.events() if event.device_type == torch.profiler.DeviceType.CUDA
    ]
    assert 1 <= len(launched) <= 3, launched


@pytest.mark.parametrize(("make", "backend"), OPS)
def test_another_stream(make, backend):
    call = make("prefill", 0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        verify(backend(), call)


class OneLayer:
    """A backend that makes all calls with its own layer.

    Before each run it copies the tensors of the call's layer into its own layer, and after the run it copies
    them back.
    """

    def __init__(self, backend):
        self.backend, self.layer = backend, None

    def plan(self, phase, batch):
        return self.backend.plan(phase, batch)

    def run(self, call, batch, plan):
        values = {field.name: getattr(call.layer, field.name) for field in dataclasses.fields(call.layer)}
        tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
        if self.layer is None:
            own = {name: tensor.clone() for name, tensor in tensors.items()}
            self.layer = dataclasses.replace(call.layer, **own)
        for name, tensor in tensors.items():
            getattr(self.layer, name).copy_(tensor)
        record = self.backend.run(call._replace(layer=self.layer), batch, plan)
        for name, tensor in tensors.items():
            tensor.copy_(getattr(self.layer, name))
        return record


@every_call
def test_launches_after_the_first_and_tensors_of_other_alignment(make, backend, phase):
    backend = OneLayer(backend())
    fused = make(phase, 0)  # views of one buffer, aligned to 8 bytes
    dense = dataclasses.replace(
        fused,
        tensors={
            name: tensor.contiguous() if name in fused.contract.inputs[:3] else tensor
            for name, tensor in fused.tensors.items()
        },
    )
    for call in (dense, fused, dense, fused, dense):
        verify(backend, call)


@pytest.mark.parametrize(("make", "backend"), OPS[1:5])
def test_a_split_prefill_is_captured_and_replayed_with_other_numbers(make, backend, monkeypatch):
    monkeypatch.setattr(segments, "plan_segments", lambda *arguments: Segments(1, 1, 3, 1))
    backend = backend()
    first, second = make("prefill", 0), make("prefill", 1)
    first.clone().run(backend)
    plan = backend.plan("prefill", first.batch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        first.bind(backend, plan)()
    _replace(first, second)
    graph.replay()
    eager = second.clone()
    eager.run(backend)
    torch.cuda.synchronize()
    assert same_bits(first.out, eager.out)
    assert same_bits(first.state, eager.state)
    verify(backend, second)
