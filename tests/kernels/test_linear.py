"""Lightning attention and Mamba 2, which share kernels."""

import pytest
import torch
from switchrail.testing.compare import same_bits, verify, verify_commit
from switchrail.testing.inputs import lightning_call, mamba2_call
from switchrail_kernels.lightning.triton import TritonLightning
from switchrail_kernels.mamba2.triton import TritonMamba2

OPS = [
    pytest.param(TritonLightning, lightning_call, id="lightning"),
    pytest.param(TritonMamba2, mamba2_call, id="mamba2"),
]


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_small_time_steps_keep_their_digits(device, phase):
    lengths = [1] * 3 if phase == "decode" else [20, 3]
    call = mamba2_call(lengths, phase=phase, bias=False, skip=False, device=device)
    call.tensors["dt"].uniform_(-6.9, -6.8)  # their softplus is about 1e-3
    call.state[1:] = 0
    verify(TritonMamba2(), call)


@pytest.mark.parametrize("every", [77])
@pytest.mark.parametrize(("backend", "make"), OPS)
def test_states_kept_on_the_way(backend, make, device, every):
    call = make([131, 0, 20, 64], padding=(2,), gate="mixed", initial="all", device=device)
    verify(backend(), call.with_checkpoints(every))


@pytest.mark.parametrize(("backend", "make"), OPS)
def test_drafts_of_any_length(backend, make, device):
    options = {"gate": "mixed", "initial": "all", "padding": (1,), "in_place": False}
    call = make([18, 2, 0, 3], phase="verify", device=device, **options)
    verify_commit(backend(), call.with_trees(seed=2))


@pytest.mark.parametrize(("backend", "make"), OPS)
def test_rows_that_are_accepted_beyond_the_end_count_as_the_last(backend, make, device):
    call = make([3, 2], phase="verify", initial="all", device=device)
    states = []
    for last in ([2, 1], [9, 5]):
        verified = call.clone().run(backend())
        state = call.state.clone()
        verified.commit(torch.tensor(last, device=device), state)
        states.append(state)
    assert same_bits(*states)
    assert not same_bits(states[0], call.state)


@pytest.mark.gpu
@pytest.mark.parametrize("gate", ["decaying", "one", "mixed"])
def test_sizes_of_models(device, dtype, gate):
    options = {"gate": gate, "dtype": dtype, "device": device}
    for phase, lengths in (("prefill", [1, 0, 200, 64, 63]), ("decode", [1] * 7), ("verify", [4, 1, 20])):
        verify(
            TritonLightning(),
            lightning_call(lengths, phase=phase, heads=64, key_size=128, value_size=128, **options),
        )
        verify(
            TritonMamba2(),
            mamba2_call(lengths, phase=phase, heads=128, groups=8, head_size=64, state_size=128, **options),
        )


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(16, 64), (64, 64), (128, 256), (256, 128), (256, 256)], ids=str)
def test_large_head_sizes(device, dtype, sizes):
    options = {"dtype": dtype, "device": device}
    verify(TritonLightning(), lightning_call([130, 5], key_size=sizes[0], value_size=sizes[1], **options))
    verify(TritonMamba2(), mamba2_call([130, 5], state_size=sizes[0], head_size=sizes[1], **options))
    options["phase"] = "verify"
    verify_commit(
        TritonLightning(), lightning_call([5, 2], key_size=sizes[0], value_size=sizes[1], **options)
    )
    verify_commit(TritonMamba2(), mamba2_call([5, 2], state_size=sizes[0], head_size=sizes[1], **options))


@pytest.mark.gpu
@pytest.mark.parametrize(("backend", "make"), OPS)
def test_states_kept_on_the_way_of_a_sequence_that_is_split(backend, make, dtype, device):
    sizes = (
        {"key_size": 64, "value_size": 64} if make is lightning_call else {"head_size": 64, "state_size": 64}
    )
    call = make([6000, 70], heads=2, initial="all", dtype=dtype, device=device, **sizes)
    verify(backend(), call.with_checkpoints(512))
