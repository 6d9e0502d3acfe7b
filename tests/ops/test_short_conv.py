import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from switchrail.ops.short_conv.torch import BLOCK_NUMBERS, TorchShortConv
from switchrail.testing.compare import BOUNDS, measure, same_bits, verify
from switchrail.testing.inputs import run_reference, short_conv_call
from switchrail.testing.steps import run_in_steps

from tests.ops.strategies import DTYPES

BACKEND = TorchShortConv


@settings(max_examples=250, derandomize=True)
@given(
    lengths=st.lists(st.one_of(st.integers(0, 4), st.integers(0, 40)), max_size=6),
    arguments=st.fixed_dictionaries(
        {
            "channels": st.integers(1, 20),
            "width": st.integers(2, 7),
            "dtype": st.sampled_from(DTYPES),
            "bias": st.booleans(),
            "activation": st.sampled_from(["silu", None]),
            "strided": st.sampled_from([True, "time", False]),
            "initial": st.sampled_from(["all", "some", "none"]),
            "in_place": st.booleans(),
            "seed": st.integers(0, 2**16),
        }
    ),
    wide_state=st.booleans(),
    padded=st.booleans(),
    data=st.data(),
)
def test_any_prefill(lengths, arguments, wide_state, padded, data):
    padding = data.draw(st.sets(st.sampled_from(range(len(lengths))))) if lengths and padded else ()
    state_dtype = torch.float32 if wide_state and arguments["dtype"] != torch.float64 else None
    call = short_conv_call(lengths, state_dtype=state_dtype, padding=padding, **arguments)
    verify(TorchShortConv(), call)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("in_place", [True, False])
def test_decode(backend, dtype, width, in_place):
    call = short_conv_call(
        [1] * 9, phase="decode", width=width, dtype=dtype, bias=True, in_place=in_place, padding=(0, 5)
    )
    verify(backend, call)


@pytest.mark.parametrize("rows", [1, 2, 16])
def test_more_rows_than_are_summed_at_once(backend, rows):
    call = short_conv_call([2 * rows + 3, 1, rows], channels=BLOCK_NUMBERS // rows, initial="all")
    verify(backend, call)


def test_the_first_rows_see_the_state(backend):
    call = short_conv_call([2], channels=1, width=3, activation=None, strided=False, initial="all")
    call.tensors["x"].copy_(torch.tensor([[3.0], [4.0]]))
    call.tensors["weight"].copy_(torch.tensor([[100.0, 10.0, 1.0]]))
    slot = int(call.batch.read_slots[0])
    call.state[slot] = torch.tensor([[1.0, 2.0]])
    call.run(backend)
    assert call.out[:, 0].tolist() == [123.0, 234.0]
    assert call.state[slot].tolist() == [[3.0, 4.0]]


def test_a_short_sequence_shifts_the_old_state(backend):
    call = short_conv_call([1], channels=1, width=5, strided=False, initial="all")
    slot = int(call.batch.read_slots[0])
    call.state[slot] = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    call.tensors["x"].fill_(5.0)
    call.run(backend)
    assert call.state[slot].tolist() == [[2.0, 3.0, 4.0, 5.0]]


def test_chunks_of_any_size_continue_the_state(backend):
    call = short_conv_call([30, 1, 17], initial="some", seed=5)
    expected = run_reference(call)
    for schedule in (
        [[16, 1, 0], [13, 0, 16], [1, 0, 1]],
        [[2, 0, 1]] * 15 + [[0, 1, 2]],
        [[1, 0, 0]] * 30 + [[0, 1, 17]],
    ):
        actual = run_in_steps(backend, call, schedule)
        assert measure(actual.out, expected.out).within(BOUNDS[torch.float32])
        slots = call.batch.write_slots
        assert same_bits(actual.state[slots], expected.state[slots].float())


def test_decoding_step_by_step_equals_prefill(backend):
    call = short_conv_call([20] * 5, initial="all", seed=6)
    expected = run_reference(call)
    actual = run_in_steps(backend, call, [[1] * 5] * 20, phase="decode")
    assert measure(actual.out, expected.out).within(BOUNDS[torch.float32])
    slots = call.batch.write_slots
    assert same_bits(actual.state[slots], expected.state[slots].float())
