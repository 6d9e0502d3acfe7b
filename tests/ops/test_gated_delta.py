import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from switchrail.ops.gated_delta.torch import CHUNK, GROUP_TOKENS, TorchGatedDelta
from switchrail.testing.compare import BOUNDS, Error, measure, same_bits, verify
from switchrail.testing.inputs import gated_delta_call, run_reference
from switchrail.testing.steps import run_in_steps

GATES = ["decaying", "near_zero", "near_one", "one", "mixed"]
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]

lengths = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 2 * CHUNK + 3)), min_size=0, max_size=6)


@pytest.fixture(scope="module")
def backend():
    return TorchGatedDelta()


@settings(
    max_examples=250,
    deadline=None,
    derandomize=True,
)
@given(
    lengths=lengths,
    heads=st.integers(1, 3),
    group=st.integers(1, 3),
    key_size=st.integers(1, 20),
    value_size=st.integers(1, 20),
    dtype=st.sampled_from(DTYPES),
    gate=st.sampled_from(GATES),
    initial=st.sampled_from(["all", "some", "none"]),
    flags=st.tuples(*[st.booleans()] * 5),
    seed=st.integers(0, 2**16),
    data=st.data(),
)
def test_any_prefill(lengths, heads, group, key_size, value_size, dtype, gate, initial, flags, seed, data):
    strided, qk_l2norm, in_place, zero_keys, padded = flags
    padding = data.draw(st.sets(st.sampled_from(range(len(lengths))))) if lengths and padded else ()
    call = gated_delta_call(
        lengths,
        heads=heads,
        value_heads=heads * group,
        key_size=key_size,
        value_size=value_size,
        dtype=dtype,
        gate=gate,
        initial=initial,
        strided=strided,
        qk_l2norm=qk_l2norm,
        in_place=in_place,
        zero_keys=zero_keys,
        padding=padding,
        seed=seed,
    )
    verify(TorchGatedDelta(), call)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_extreme_gates_with_large_beta_and_keys_that_nearly_agree(backend, dtype, gate, phase):
    lengths = [1] * 7 if phase == "decode" else [31, 0, 32, 33, 1, 64, 65, 200]
    call = gated_delta_call(
        lengths,
        phase=phase,
        gate=gate,
        beta_max=2.0,
        correlated=True,
        key_size=32,
        value_size=24,
        dtype=dtype,
        padding=(2,),
        in_place=False,
    )
    verify(backend, call)


@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_state_of_another_dtype(backend, state_dtype, phase):
    lengths = [1] * 4 if phase == "decode" else [40, 3, 0, 1]
    call = gated_delta_call(
        lengths, phase=phase, dtype=torch.bfloat16, state_dtype=state_dtype, initial="all"
    )
    verify(backend, call)
    verify(
        backend,
        gated_delta_call(lengths, phase=phase, state_dtype=torch.bfloat16, initial="all"),
        bound=BOUNDS[torch.bfloat16],
    )


@pytest.mark.parametrize("gate", ["decaying", "one", "mixed"])
def test_the_error_does_not_grow_with_the_length(backend, gate):
    call = gated_delta_call(
        [4096], heads=1, value_heads=2, key_size=32, value_size=32, gate=gate, initial="all"
    )
    verify(backend, call, bound=Error(4e-6, 4e-5))


def test_more_tokens_than_are_worked_on_at_once(backend):
    call = gated_delta_call([GROUP_TOKENS - 1, 5, 2 * GROUP_TOKENS + 7, 600], heads=1, value_heads=1)
    assert len(backend.plan("prefill", call.batch).groups) > 2
    verify(backend, call)


def test_large_inputs_and_keys_that_are_zero(backend):
    verify(backend, gated_delta_call([70, 9], norm=1e4, zero_keys=True, initial="all"))
    call = gated_delta_call([70, 9], initial="all")
    for name in ("q", "k"):
        call.tensors[name].zero_()
    expected = run_reference(call)
    assert not expected.out.any()
    verify(backend, call, expected=expected)


def test_chunks_of_any_size_continue_the_state(backend):
    call = gated_delta_call([130, 1, 77], gate="mixed", initial="some", seed=5)
    expected = run_reference(call)
    schedules = [
        [[64, 1, 0], [64, 0, 64], [2, 0, 13]],
        [[7, 0, 7]] * 11 + [[53, 1, 0]],
        [[0, 0, 1]] * 70 + [[130, 1, 7]],
    ]
    for schedule in schedules:
        actual = run_in_steps(backend, call, schedule)
        assert measure(actual.out, expected.out).within(BOUNDS[torch.float32])
        slots = call.batch.write_slots
        assert measure(actual.state[slots], expected.state[slots]).within(BOUNDS[torch.float32])


def test_decoding_step_by_step_equals_prefill(backend):
    call = gated_delta_call([40] * 5, initial="all", seed=6)
    expected = run_reference(call)
    actual = run_in_steps(backend, call, [[1] * 5] * 40, phase="decode")
    assert measure(actual.out, expected.out).within(BOUNDS[torch.float32])
    slots = call.batch.write_slots
    assert measure(actual.state[slots], expected.state[slots]).within(BOUNDS[torch.float32])


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_sequence_of_nan_harms_no_other(backend, phase):
    lengths = [1] * 4 if phase == "decode" else [40, 70, 3, 70]
    clean = gated_delta_call(lengths, phase=phase, strided=False, initial="all")
    dirty = clean.clone()
    rows = slice(*dirty.batch.cu_seqlens[1:3].tolist())
    for name in ("q", "k", "v", "g", "beta"):
        dirty.tensors[name][rows] = torch.nan
    dirty.state[dirty.batch.read_slots[1]] = torch.nan
    clean.run(backend)
    dirty.run(backend)
    assert dirty.out[rows].isnan().all()
    others = torch.ones(len(clean.out), dtype=torch.bool)
    others[rows] = False
    assert same_bits(clean.out[others], dirty.out[others])
    slots = clean.batch.write_slots[[0, 2, 3]]
    assert same_bits(clean.state[slots], dirty.state[slots])


@pytest.mark.parametrize("initial", ["all", "some", "none"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_slots_that_follow_one_another_are_changed_in_place(backend, phase, initial):
    lengths = [1] * 4 if phase == "decode" else [9] * 4
    call = gated_delta_call(lengths, phase=phase, initial=initial, seed=8)
    call.state[2:6] = call.state[call.batch.read_slots]
    call.state[[0, 1, 6]] = torch.nan
    slots = torch.arange(2, 6)
    verify(
        backend,
        dataclasses.replace(call, batch=dataclasses.replace(call.batch, read_slots=slots, write_slots=slots)),
    )
