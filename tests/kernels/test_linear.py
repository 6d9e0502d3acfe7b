"""Lightning attention and Mamba 2, which share their kernels."""

import pytest
import torch
from switchrail.testing.compare import Error, same_bits, verify
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
@pytest.mark.parametrize(("backend", "make"), OPS)
def test_a_bfloat16_state_is_rounded_once(backend, make, device, phase):
    lengths = [1] * 4 if phase == "decode" else [70, 9]
    call = make(lengths, phase=phase, state_dtype=torch.bfloat16, device=device)
    verify(backend(), call, bound=Error(4e-3, 8e-3))


@pytest.mark.parametrize(("backend", "make"), OPS)
def test_nothing_to_do(backend, make, device):
    for phase, lengths in (("prefill", [0, 0]), ("prefill", []), ("decode", [])):
        call = make(lengths, phase=phase, device=device)
        after = call.clone()
        after.run(backend())
        assert same_bits(after.state, call.state)


@pytest.mark.gpu
@pytest.mark.parametrize("gate", ["decaying", "one", "mixed"])
def test_sizes_of_models(device, dtype, gate):
    options = {"gate": gate, "dtype": dtype, "device": device}
    for phase, lengths in (("prefill", [1, 0, 200, 64, 63]), ("decode", [1] * 7)):
        verify(
            TritonLightning(),
            lightning_call(lengths, phase=phase, heads=64, key_size=128, value_size=128, **options),
        )
        verify(
            TritonMamba2(),
            mamba2_call(lengths, phase=phase, heads=128, groups=8, head_size=64, state_size=128, **options),
        )


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(64, 64), (128, 256), (256, 128), (256, 256)], ids=str)
def test_large_head_sizes(device, dtype, sizes):
    options = {"dtype": dtype, "device": device}
    verify(TritonLightning(), lightning_call([130, 5], key_size=sizes[0], value_size=sizes[1], **options))
    verify(TritonMamba2(), mamba2_call([130, 5], state_size=sizes[0], head_size=sizes[1], **options))
