import dataclasses

import pytest
import torch
from switchrail.errors import ContractError
from switchrail.testing.compare import BOUNDS, measure, same_bits, verify, verify_commit
from switchrail.testing.inputs import run_reference, short_conv_call
from switchrail_kernels.short_conv.triton import TritonShortConv


@pytest.fixture
def backend():
    return TritonShortConv()


@pytest.mark.parametrize("strided", [True, "time", False])
def test_ragged_lengths_and_strides(backend, device, dtype, strided):
    call = short_conv_call(
        [1, 0, 2, 3, 64, 65, 130], channels=40, strided=strided, dtype=dtype, device=device
    )
    verify(backend, call)


@pytest.mark.parametrize("width", [2, 4, 7, 17])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_widths_bias_and_activation(backend, device, width, phase):
    lengths = [1] * 4 if phase == "decode" else [1, 2, 9, 64, 70]
    for bias, activation in ((True, None), (False, "silu"), (True, "silu")):
        call = short_conv_call(
            lengths, phase=phase, width=width, channels=72, bias=bias, activation=activation, device=device
        )
        verify(backend, call)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize(
    "options",
    [
        {"padding": (1,), "in_place": False, "initial": "all"},
        {"padding": (0, 2)},
        {"initial": "none"},
        {"dtype": torch.float16, "state_dtype": torch.float32},
        {"strided": "time"},
    ],
    ids=str,
)
def test_slots_and_dtypes(backend, device, options, phase):
    lengths = [1] * 4 if phase == "decode" else [70, 2, 64, 1]
    verify(backend, short_conv_call(lengths, phase=phase, device=device, seed=3, **options))


@pytest.mark.parametrize("step", [1, 2, 3, 50])
def test_a_state_carried_between_calls_equals_one_pass(backend, device, step):
    call = short_conv_call([101], initial="none", device=device)
    expected = run_reference(call)
    for first in range(0, 101, step):
        last = min(first + step, 101)
        batch = dataclasses.replace(
            call.batch,
            cu_seqlens=torch.tensor([0, last - first], dtype=torch.int32, device=device),
            seqlens=(last - first,),
            has_initial_state=torch.tensor([first > 0], device=device),
        )
        tensors = {**call.tensors, "x": call.tensors["x"][first:last], "out": call.out[first:last]}
        dataclasses.replace(call, tensors=tensors, batch=batch).run(backend)
    assert measure(call.out, expected.out).within(BOUNDS[torch.float32])
    slot = call.batch.write_slots
    assert measure(call.state[slot], expected.state[slot.cpu()]).within(BOUNDS[torch.float32])


@pytest.mark.parametrize(("width", "every"), [(2, 1), (4, 3), (4, 16), (17, 7)])
def test_states_kept_on_the_way(backend, device, width, every):
    call = short_conv_call([100, 0, 20, 64], width=width, padding=(2,), initial="all", device=device)
    verify(backend, call.with_checkpoints(every))


@pytest.mark.parametrize(
    "options",
    [{"width": 4, "padding": (1,), "in_place": False}, {"width": 2, "strided": "time"}, {"width": 17}],
    ids=str,
)
def test_drafts_of_any_length(backend, device, options):
    call = short_conv_call([9, 2, 0, 4], phase="verify", channels=40, device=device, **options)
    verify_commit(backend, call)
    verify_commit(backend, call.with_trees(seed=2))


def test_nothing_to_do(backend, device):
    for phase, lengths in (("prefill", [0, 0]), ("prefill", []), ("decode", []), ("verify", [0, 0])):
        call = short_conv_call(lengths, phase=phase, device=device)
        after = call.clone()
        after.run(backend)
        assert same_bits(after.state, call.state)


def test_more_taps_than_a_piece_has_rows_are_refused(backend, device):
    with pytest.raises(ContractError, match=r"weight: got W = 18, expected 2 to 17"):
        short_conv_call([3], width=18, device=device).run(backend)


@pytest.mark.gpu
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_qwen3_next_sizes(backend, device, dtype, phase):
    lengths = [1] * 33 if phase == "decode" else [1, 0, 500, 64, 63]
    verify(backend, short_conv_call(lengths, phase=phase, channels=8192, dtype=dtype, device=device))
