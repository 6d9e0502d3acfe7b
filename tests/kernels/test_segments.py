"""Prefill of sequences that are split into segments."""

import numpy as np
import pytest
import torch
from switchrail.testing.compare import verify
from switchrail.testing.inputs import gated_delta_call, kda_call, lightning_call, mamba2_call
from switchrail_kernels import segments
from switchrail_kernels.fitted import H200
from switchrail_kernels.gated_delta.triton import TritonGatedDelta
from switchrail_kernels.kda.triton import TritonKda
from switchrail_kernels.lightning.triton import TritonLightning
from switchrail_kernels.mamba2.triton import TritonMamba2
from switchrail_kernels.segments import Chunks, Segments, plan_segments

OPS = [
    pytest.param(TritonGatedDelta, gated_delta_call, 32, id="gated_delta"),
    pytest.param(TritonKda, kda_call, 32, id="kda"),
    pytest.param(TritonLightning, lightning_call, 64, id="lightning"),
    pytest.param(TritonMamba2, mamba2_call, 32, id="mamba2"),
]


COSTS = [H200.walks[name] for name in ("delta", "lightning", "mamba2")]


def split(monkeypatch, first, length):
    """Split every call: the first segment has `first` chunks, others at most `length`."""

    def plan(counts, heads, programs, costs):
        most = 1 - (-(int(counts[0]) - first) // length)
        return Segments(first, length, most, int((counts > first).sum()))

    monkeypatch.setattr(segments, "plan_segments", plan)


@pytest.mark.parametrize(("first", "length"), [(1, 1), (1, 2)])
@pytest.mark.parametrize(("backend", "make", "chunk"), OPS)
def test_segments_of_ragged_sequences(backend, make, chunk, first, length, monkeypatch, device):
    split(monkeypatch, first, length)
    lengths = [1, 0, chunk, chunk + 1, 2 * chunk, 4 * chunk + 5, 3 * chunk - 1]
    verify(backend(), make(lengths, gate="mixed", initial="some", padding=(3,), device=device))


@pytest.mark.parametrize("gate", ["one", "near_zero"])
@pytest.mark.parametrize(("backend", "make", "chunk"), OPS)
def test_gates_across_segments(backend, make, chunk, gate, monkeypatch, device, dtype):
    split(monkeypatch, 1, 1)
    verify(backend(), make([4 * chunk], gate=gate, initial="all", dtype=dtype, device=device))


@pytest.mark.parametrize(("backend", "make", "chunk"), OPS)
def test_states_kept_in_segments(backend, make, chunk, monkeypatch, device):
    split(monkeypatch, 2, 3)
    call = make([1, 0, 64, 260, 100], gate="mixed", padding=(2,), device=device)
    verify(backend(), call.with_checkpoints(64))


@pytest.mark.gpu
@pytest.mark.parametrize("gate", ["decaying", "one"])
@pytest.mark.parametrize(("backend", "make", "chunk"), OPS)
def test_long_sequences_are_split_unasked(backend, make, chunk, gate, device):
    call = make([9000, 40, 2500], gate=gate, dtype=torch.bfloat16, device=device)
    instance = backend()
    verify(instance, call)
    plan = instance.plan("prefill", call.batch)
    heads = call.out.shape[1]
    assert plan.split(heads, call.out.device, instance.costs).split >= 1


@pytest.mark.parametrize("costs", COSTS, ids=["delta", "lightning", "mamba2"])
def test_sequences_that_are_split(costs):
    def plan(*counts, heads=32):
        return plan_segments(np.array(counts), heads, 132, costs)

    assert plan(1024, heads=8).most > plan(1024, heads=32).most > 1
    assert plan(*[64] * 16) == plan(*[1024] * 16) == plan(8) == Segments()
    chosen = plan(1024, 300, 30)
    assert chosen.split == sum(count > chosen.first for count in (1024, 300, 30)) > 0
    assert chosen.first + (chosen.most - 1) * chosen.length >= 1024
    assert chosen.first + (chosen.most - 2) * chosen.length < 1024


@pytest.mark.parametrize("costs", COSTS, ids=["delta", "lightning", "mamba2"])
def test_short_sequences_do_not_keep_a_long_one_whole(costs):
    chosen = plan_segments(np.array([938] + [1] * 64), 32, 132, costs)
    assert chosen.most > 1
    assert chosen.split == 1


@pytest.mark.parametrize("costs", COSTS, ids=["delta", "lightning", "mamba2"])
def test_every_segment_has_chunks(costs):
    for longest in range(30, 400):
        for heads in (1, 4, 16, 64):
            chosen = plan_segments(np.array([longest, 31]), heads, 132, costs)
            if chosen.split:
                assert chosen.first >= 1
                assert longest - chosen.length <= chosen.first + (chosen.most - 2) * chosen.length < longest


def test_each_launch_has_a_program_for_each_of_its_segments():
    assert Segments().programs(5) == ((0, 5),)
    assert Segments(2, 3, 4, 2).programs(5) == ((1, 5 + 2 * 2), (2, 2 * 3))


@pytest.mark.parametrize(
    ("lengths", "ahead"),
    [
        ([], 0),
        ([0, 0], 0),
        ([30, 32, 0], 1),
        ([33, 64, 20], 1),
        ([100] * 3, 2),
        ([33, 200, 64], 2),
        ([20, 300], 0),  # the programs would have to load for the sequence after the next
        ([224, 225, 224], 2),
        ([256] * 3, 0),
    ],
)
def test_how_far_ahead_programs_of_several_sequences_load(lengths, ahead):
    call = gated_delta_call(lengths)
    assert Chunks.of(call.batch, 32).ahead == ahead
