import dataclasses
import itertools

import pytest
import torch
from switchrail.testing.compare import BOUNDS, measure, same_bits, verify
from switchrail.testing.inputs import gated_delta_call, run_reference
from switchrail_kernels.delta import scan
from switchrail_kernels.gated_delta.triton import TritonGatedDelta

SMALL = {"heads": 2, "value_heads": 4, "key_size": 16, "value_size": 16}


@pytest.fixture
def backend():
    return TritonGatedDelta()


def test_tiles_for_little_shared_memory(backend, device, monkeypatch):
    monkeypatch.setattr(scan, "has_large_shared_memory", lambda device: False)
    for size in (16, 256) if device.type == "cuda" else (16,):
        call = gated_delta_call([70, 9], key_size=size, value_size=size, dtype=torch.float16, device=device)
        verify(backend, call)


@pytest.mark.parametrize("every", [24, 1000])
def test_states_kept_on_the_way(backend, device, every):
    call = gated_delta_call([70, 0, 24, 65], gate="mixed", padding=(2,), device=device, **SMALL)
    verify(backend, call.with_checkpoints(every))


def _rows(call, first, last):
    """Rows `first` to `last` of a call with one sequence, as a call that continues the sequence's state."""
    tensors = {
        name: tensor[first:last] if call.contract.tensors[name].axes[0] == "T" else tensor
        for name, tensor in call.tensors.items()
    }
    device = call.out.device
    batch = dataclasses.replace(
        call.batch,
        cu_seqlens=torch.tensor([0, last - first], dtype=torch.int32, device=device),
        seqlens=(last - first,),
        has_initial_state=torch.tensor([first > 0], device=device),
    )
    return dataclasses.replace(call, tensors=tensors, batch=batch)


@pytest.mark.parametrize("pieces", [(0, 37, 101)])
def test_a_state_carried_between_calls_equals_one_pass(backend, device, pieces):
    call = gated_delta_call([101], initial="none", device=device, **SMALL)
    expected = run_reference(call)
    for first, last in itertools.pairwise(pieces):
        _rows(call, first, last).run(backend)
    assert measure(call.out, expected.out).within(BOUNDS[torch.float32])
    slot = call.batch.write_slots
    assert measure(call.state[slot], expected.state[slot.cpu()]).within(BOUNDS[torch.float32])


def test_a_result_does_not_depend_on_its_neighbours(backend, device):
    call = gated_delta_call([90, 70, 3], initial="all", device=device, **SMALL)
    together = call.clone()
    together.run(backend)
    single = dataclasses.replace(
        call.batch,
        cu_seqlens=torch.tensor([0, 70], dtype=torch.int32, device=device),
        seqlens=(70,),
        read_slots=call.batch.read_slots[1:2],
        write_slots=call.batch.write_slots[1:2],
        has_initial_state=call.batch.has_initial_state[1:2],
    )
    alone = dataclasses.replace(
        call,
        batch=single,
        tensors={
            name: tensor[90:160] if call.contract.tensors[name].axes[0] == "T" else tensor
            for name, tensor in call.clone().tensors.items()
        },
    )
    alone.run(backend)
    slot = single.write_slots
    assert same_bits(alone.out, together.out[90:160])
    assert same_bits(alone.state[slot], together.state[slot])


QWEN3_NEXT = {"heads": 16, "value_heads": 32, "key_size": 128, "value_size": 128}


@pytest.mark.gpu
@pytest.mark.parametrize("gate", ["decaying", "one", "mixed"])
def test_qwen3_next_sizes(backend, device, dtype, gate):
    verify(
        backend, gated_delta_call([1, 0, 200, 64, 63], gate=gate, dtype=dtype, device=device, **QWEN3_NEXT)
    )
    verify(
        backend,
        gated_delta_call([1] * 7, phase="decode", gate=gate, dtype=dtype, device=device, **QWEN3_NEXT),
    )


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(64, 64), (128, 256), (256, 128), (256, 256)], ids=str)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_large_head_sizes(backend, device, dtype, sizes, phase):
    lengths = [1] * 3 if phase == "decode" else [130, 5]
    call = gated_delta_call(
        lengths, phase=phase, key_size=sizes[0], value_size=sizes[1], dtype=dtype, device=device
    )
    verify(backend, call)


@pytest.mark.gpu
def test_the_error_does_not_grow_with_time(backend, device):
    call = gated_delta_call(
        [3000],
        gate="near_one",
        heads=1,
        value_heads=2,
        key_size=128,
        value_size=128,
        dtype=torch.bfloat16,
        device=device,
    )
    expected = run_reference(call)
    call.run(backend)
    for first in (0, 1000, 2000):
        assert measure(call.out[first : first + 1000], expected.out[first : first + 1000]).within(
            BOUNDS[torch.bfloat16]
        )


@pytest.mark.gpu
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_slots_beyond_2_to_the_31_elements(backend, device, phase):
    lengths = [1] * 3 if phase == "decode" else [70, 64, 2]
    call = gated_delta_call(
        lengths, phase=phase, dtype=torch.bfloat16, device=device, initial="all", **QWEN3_NEXT
    )
    small = call.clone()
    small.run(backend)
    slots = 4200  # of 2^19 elements
    offset = slots - call.state.shape[0]
    state = torch.full((slots, *call.state.shape[1:]), torch.nan, device=device)
    state[offset:] = call.state
    moved = {name: getattr(call.batch, name) + offset for name in ("read_slots", "write_slots")}
    large = dataclasses.replace(
        call, tensors={**call.clone().tensors, "state": state}, batch=dataclasses.replace(call.batch, **moved)
    )
    large.run(backend)
    assert same_bits(large.out, small.out)
    assert same_bits(state[offset:], small.state)
