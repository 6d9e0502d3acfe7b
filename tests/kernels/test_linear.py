"""Lightning attention and Mamba 2, which share their kernels."""

import pytest
import torch
from switchrail.testing.compare import Error, same_bits, verify, verify_commit
from switchrail.testing.inputs import lightning_call, mamba2_call
from switchrail_kernels.lightning.triton import TritonLightning
from switchrail_kernels.mamba2.triton import TritonMamba2

OPS = [
    pytest.param(TritonLightning, lightning_call, id="lightning"),
    pytest.param(TritonMamba2, mamba2_call, id="mamba2"),
]


@pytest.mark.parametrize(("backend", "make"), OPS)
def test_ragged_lengths_around_the_chunk_size(backend, make, device, dtype):
    verify(backend(), make([1, 0, 63, 64, 65, 0, 130], dtype=dtype, device=device))


@pytest.mark.parametrize("gate", ["decaying", "near_zero", "near_one", "one", "mixed"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize(("backend", "make"), OPS)
def test_every_kind_of_gate(backend, make, device, dtype, gate, phase):
    lengths = [1] * 4 if phase == "decode" else [80, 3]
    verify(backend(), make(lengths, phase=phase, gate=gate, dtype=dtype, device=device, seed=1))


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize(
    "options",
    [
        {"padding": (1,), "in_place": False, "initial": "all"},
        {"initial": "none", "strided": False},
        {"zero_keys": True},
    ],
    ids=str,
)
@pytest.mark.parametrize(("backend", "make"), OPS)
def test_slots_and_strides(backend, make, device, options, phase):
    lengths = [1] * 4 if phase == "decode" else [70, 9, 64, 2]
    verify(backend(), make(lengths, phase=phase, device=device, seed=3, **options))


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_other_head_sizes(device, dtype, phase):
    lengths = [1] * 3 if phase == "decode" else [66, 5]
    options = {"phase": phase, "dtype": dtype, "device": device}
    verify(TritonLightning(), lightning_call(lengths, heads=1, key_size=24, value_size=48, **options))
    verify(TritonMamba2(), mamba2_call(lengths, heads=3, groups=1, head_size=24, state_size=48, **options))


@pytest.mark.parametrize(
    "options",
    [
        {"dt_softplus": False},
        {"dt_limits": (0.1, 0.5)},
        {"bias": False},
        {"skip": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_time_steps_and_skip(device, phase, options):
    lengths = [1] * 3 if phase == "decode" else [70, 3]
    verify(TritonMamba2(), mamba2_call(lengths, phase=phase, device=device, **options))


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_small_time_steps_keep_their_digits(device, phase):
    lengths = [1] * 3 if phase == "decode" else [20, 3]
    call = mamba2_call(lengths, phase=phase, bias=False, skip=False, device=device)
    call.tensors["dt"].uniform_(-6.9, -6.8)  # softplus of them is about 1e-3
    call.state[1:] = 0
    verify(TritonMamba2(), call)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize(("backend", "make"), OPS)
def test_a_bfloat16_state_is_rounded_once(backend, make, device, phase):
    lengths = [1] * 4 if phase == "decode" else [70, 9]
    call = make(lengths, phase=phase, state_dtype=torch.bfloat16, device=device)
    verify(backend(), call, bound=Error(4e-3, 8e-3))


@pytest.mark.parametrize("every", [48, 64, 77])
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


@pytest.mark.parametrize(("backend", "make"), OPS)
def test_nothing_to_do(backend, make, device):
    for phase, lengths in (("prefill", [0, 0]), ("prefill", []), ("decode", []), ("verify", [0, 0])):
        call = make(lengths, phase=phase, device=device)
        after = call.clone()
        after.run(backend())
        assert same_bits(after.state, call.state)


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
