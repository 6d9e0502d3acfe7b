"""The batches that `switchrail tune` times: their grid, and large calls that are made from small ones."""

import pytest
import switchrail
import torch
from switchrail._core import load_of
from switchrail.ops.attention.torch import TorchAttention
from switchrail.ops.gated_delta.torch import TorchGatedDelta
from switchrail.ops.short_conv.torch import TorchShortConv
from switchrail.platforms.cpu import CpuServing
from switchrail.testing import isolated
from switchrail.testing.inputs import (
    CONTRACTS,
    REFERENCES,
    attention_call,
    gated_delta_call,
    mla_call,
    short_conv_call,
)
from switchrail.tune import SIZES, Batch, Size, batches, sizes_of, tune
from switchrail.tune.clock import Time
from switchrail.tune.inputs import bytes_of, copies, enlarged

from tests.layouts.small import CONFIG

PHASES = ("prefill", "decode", "verify")


@pytest.mark.parametrize("large", [True, False])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("op", CONTRACTS)
def test_batches_of_a_grid_have_different_loads(op, phase, large):
    grid = batches(op, phase, large)
    loads = [load_of(op, batch.lengths, batch.cached) for batch in grid]
    assert len(grid) >= 3
    assert len(set(loads)) == len(loads)
    for batch in grid:
        assert (batch.cached is not None) == (op in ("attention", "mla"))
        assert set(batch.lengths) == {1} or phase != "decode"
        if batch.cached is not None:
            assert all(own <= cached for own, cached in zip(batch.lengths, batch.cached, strict=True))
    assert set(SIZES) == set(CONTRACTS)


def test_one_sequence_and_many_are_in_the_grid_of_each_total():
    grid = batches("gated_delta", "prefill", True)
    for rows in (512, 2048, 8192, 32768):
        counts = {len(batch.lengths) for batch in grid if sum(batch.lengths) == rows}
        assert counts == {1, 2, 4, 8, 16, 64}
    assert {len(batch.lengths) for batch in batches("kda", "decode", True)} == {2**i for i in range(9)}


@pytest.mark.parametrize("large", [True, False])
def test_prefills_without_and_with_a_short_prefix_are_in_the_grid(large):
    grid = batches("attention", "prefill", large)
    alone = {
        sum(batch.lengths) for batch in grid if batch.cached == batch.lengths and len(batch.lengths) == 1
    }
    after = {batch.lengths[0] for batch in grid if batch.cached == (batch.lengths[0] * 9 // 8,)}
    assert len(alone) == 5
    assert alone == after


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("make", [gated_delta_call, short_conv_call, attention_call, mla_call])
def test_an_enlarged_call_keeps_the_contract_and_is_right(make, phase):
    small = make((1, 1, 1) if phase == "decode" else (3, 4), phase=phase)
    lengths = (1,) * 9 if phase == "decode" else (9, 2, 17)
    cached = tuple(length + 5 for length in lengths) if hasattr(small.batch, "kv_seqlens") else None
    call = enlarged(small, Batch(lengths=lengths, cached=cached))
    assert call.batch.seqlens == lengths
    assert getattr(call.batch, "kv_seqlens", None) == cached
    for name, tensor in small.tensors.items():
        large = call.tensors[name]
        assert (tensor is None) == (large is None)
        if tensor is not None and call.contract.tensors[name].axes[0] == "T":
            assert large.stride() == tensor.stride()
            assert large.shape == (sum(lengths), *tensor.shape[1:])
    again = copies(call, 3)
    assert len({each.out.data_ptr() for each in again}) == 3
    assert all(each.batch is call.batch for each in again)
    backend = REFERENCES[call.op]()
    call.run(backend)
    assert torch.isfinite(call.out).all()
    assert bytes_of(call) >= call.out.nbytes


def test_timed_tensors_are_aligned_to_16_bytes():
    small = gated_delta_call((3, 4), dtype=torch.bfloat16, strided=True)
    assert small.tensors["q"].data_ptr() % 16
    call = enlarged(small, Batch(lengths=(9, 2), cached=None))
    for name in ("q", "k", "v"):
        assert call.tensors[name].data_ptr() % 16 == 0
        assert call.tensors[name].stride(0) == small.tensors[name].stride(0) - 8
        torch.testing.assert_close(call.tensors[name][7:], small.tensors[name][:4], rtol=0, atol=0)

    small = mla_call((3, 4), dtype=torch.bfloat16, strided=True)
    assert small.tensors["w_v"].data_ptr() % 16
    call = enlarged(small, Batch(lengths=(9, 2), cached=(9, 2)))
    for name in ("w_k", "w_v"):
        assert call.tensors[name].data_ptr() % 16 == 0
        assert call.tensors[name].stride(0) == small.tensors[name].stride(0) - 8
        torch.testing.assert_close(call.tensors[name], small.tensors[name], rtol=0, atol=0)


def test_pages_are_those_of_an_engine_or_the_nearest_that_a_backend_claims(monkeypatch):
    def time_calls(calls, way, platform):
        for call in calls:
            call()
        return Time(1_000, 0.0)

    monkeypatch.setattr("switchrail.tune.timing.time_calls", time_calls)
    monkeypatch.setattr(CpuServing, "engine_defaults", lambda self: {"page_size": 48})
    pages = {}

    def backend(name):
        class Paged(TorchAttention):
            def run(self, call, batch, plan):
                pages[name] = call.layer.k_cache.shape[1]  # the last batch that was timed
                super().run(call, batch, plan)

        return Paged

    common = {"op": "attention", "phases": ("prefill",)}
    with isolated() as runtime:
        runtime.register("any", backend("any"), **common)
        runtime.register("large", backend("large"), page_sizes=(256, 64), **common)
        platform = runtime.find_platform("cpu")
        sizes = {"attention": (Size(head_size=(16, 16), heads=(1, 1)),)}
        chosen = {"phases": ("prefill",), "dtypes": ("float32",), "sizes": sizes}
        list(tune(runtime, platform, **chosen))
    assert pages == {"any": 48, "large": 64}


def test_the_sizes_of_a_model():
    assert sizes_of(switchrail.Layout.from_config(CONFIG)) == {
        "short_conv": (Size(channels=128),),
        "gated_delta": (Size(head_size=(16, 16), heads=(2, 4)),),
        "attention": (Size(head_size=(32, 32), heads=(4, 2)),),
    }
    assert Size(head_size=(576, 512), heads=(128, 1)).small() == Size(head_size=(576, 512), heads=(16, 1))


def test_a_backend_that_fails_with_one_batch_is_timed_with_the_others():
    class Small(TorchShortConv):
        def run(self, call, batch, plan):
            if call.x.shape[0] in too_many:
                raise RuntimeError("too many")
            super().run(call, batch, plan)

    with isolated() as runtime:
        runtime.register("small", Small, op="short_conv", phases=("decode",))
        runtime.register("other", TorchShortConv, op="short_conv", phases=("prefill",))
        platform = runtime.find_platform("cpu")
        chosen = {"ops": ("short_conv",), "phases": ("decode",), "dtypes": ("float32",)}
        too_many = {16}
        (timing,) = tune(runtime, platform, **chosen)
        too_many |= {1}
        (twice,) = tune(runtime, platform, **chosen)
    assert [set(times) for times in timing.samples.values()] == [{"small", "torch"}] * 2 + [{"torch"}]
    assert timing.left_out["small"] == "with 16 x 1 rows: RuntimeError('too many')"
    assert twice.left_out["small"] == "with 1 x 1 rows and 1 more: RuntimeError('too many')"
    assert "other" not in timing.left_out


def test_gates_that_never_decay_are_timed_apart():
    with isolated() as runtime:
        platform = runtime.find_platform("cpu")
        sizes = {"gated_delta": (Size(head_size=(16, 16), heads=(1, 1)),)}
        chosen = {"phases": ("prefill",), "dtypes": ("float32",), "sizes": sizes}
        timings = list(tune(runtime, platform, **chosen))
    assert [timing.no_decay for timing in timings] == [False, True]
    assert [timing.to_dict()["no_decay"] for timing in timings] == [False, True]
    assert all(timing.to_dict()["heads"] == [1, 1] for timing in timings)


def test_a_backend_for_another_state_dtype_is_left_out():
    with isolated() as runtime:
        runtime.register("half", TorchGatedDelta, op="gated_delta", state_dtypes=("bfloat16",))
        sizes = {"gated_delta": (Size(head_size=(16, 16), heads=(1, 1)),)}
        chosen = {"phases": ("decode",), "dtypes": ("float32",), "sizes": sizes}
        (timing,) = tune(runtime, runtime.find_platform("cpu"), **chosen)
    assert set(timing.ways) == {"torch"}
    assert timing.left_out["half"] == "does not take a state in float32, only bfloat16"
