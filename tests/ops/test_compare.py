"""Tests of the measures of errors, `verify`, random calls and `run_in_steps`. `verify` must detect each added
error."""

import dataclasses
import math

import pytest
import torch
from switchrail.ops.attention.reference import ReferenceAttention
from switchrail.ops.gated_delta.reference import ReferenceGatedDelta
from switchrail.ops.gated_delta.torch import TorchGatedDelta
from switchrail.testing.compare import BOUNDS, Error, measure, same_bits, verify
from switchrail.testing.inputs import GENERATORS, attention_call, gated_delta_call
from switchrail.testing.steps import run_in_steps

from tests.sabotage import sabotaged


def test_measures():
    expected = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    assert measure(expected, expected) == Error(0.0, 0.0)
    error = measure(torch.tensor([[3.0, 4.0], [0.0, 1.5]]), expected)
    assert error.norm == pytest.approx(0.5 / math.sqrt(26))
    assert error.row == pytest.approx(0.5)
    assert (error | Error(1.0, 0.0)) == Error(1.0, error.row)


def test_one_bad_row_shows_among_many():
    expected = torch.ones(10_000, 4)
    actual = expected.clone()
    actual[77] *= 1.001
    error = measure(actual, expected)
    assert error.norm < 2e-5
    assert not error.within(BOUNDS[torch.float32])


def test_the_error_of_a_tiny_row_is_relative_to_the_other_rows():
    expected = torch.tensor([[1.0], [1e-9]])
    assert measure(torch.tensor([[1.0], [2e-9]]), expected).row < 1e-7


def test_errors_of_subnormal_numbers_are_relative_to_the_smallest_normal_number():
    expected = torch.full((2, 2), 1e-40, dtype=torch.float64)
    assert not measure(expected * 1.001, expected).within(BOUNDS[torch.float32])
    assert measure((expected * 1.001).float(), expected).within(BOUNDS[torch.float32])
    assert not measure(torch.full((2, 2), 1e-35), expected).within(BOUNDS[torch.float32])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_infinity_never_pass(bad):
    good = torch.ones(2, 2)
    worse = good.clone()
    worse[1, 1] = bad
    huge = Error(1e300, 1e300)
    assert not measure(worse, good).within(huge)
    assert not measure(good, worse).within(huge)
    assert not measure(worse, worse).within(huge)


def test_empty_tensors_zeros_and_different_shapes():
    assert measure(torch.empty(0, 3), torch.empty(0, 3)) == Error(0.0, 0.0)
    assert measure(torch.zeros(2, 3), torch.zeros(2, 3)) == Error(0.0, 0.0)
    assert measure(torch.full((2, 3), 1e-30), torch.zeros(2, 3)).norm == math.inf
    with pytest.raises(ValueError, match=r"\[2, 3\], expected \[3, 2\]"):
        measure(torch.zeros(2, 3), torch.zeros(3, 2))


def test_same_bits():
    a = torch.tensor([math.nan, 0.0])
    assert same_bits(a, a.clone())
    assert not same_bits(a, torch.tensor([math.nan, -0.0]))


SABOTAGE = {
    "out is off": lambda **a: a["out"][4].mul_(1.01),
    "out is off by inf": lambda **a: a["out"][4, 0, 0].fill_(torch.nan),
    "rows of padding in out are not 0": lambda **a: a["out"][3].fill_(1e-20),
    "the state is off": lambda **a: a["state"][a["batch"].write_slots[0]].mul_(1.01),
    "a slot was written": lambda **a: a["state"][0].fill_(0.0),
    "q was modified": lambda **a: a["q"][0, 0].add_(1.0),
    "g was modified": lambda **a: a["g"][0].sub_(1.0),
    "batch.read_slots was modified": lambda **a: a["batch"].read_slots.fill_(3),
}


@pytest.mark.parametrize("message", SABOTAGE)
def test_verify_detects_each_error(message):
    call = gated_delta_call([3, 1, 5, 0], padding=(1,), in_place=False)
    verify(sabotaged(ReferenceGatedDelta, lambda **a: None), call)
    with pytest.raises(AssertionError, match=message):
        verify(sabotaged(ReferenceGatedDelta, SABOTAGE[message]), call)
    verify(ReferenceGatedDelta(), call)


def test_verify_detects_a_read_beyond_the_end():
    class Beyond(ReferenceAttention):
        def run(self, call, batch, plan):
            longer = tuple(kv + 1 for kv in batch.kv_seqlens)
            batch = dataclasses.replace(batch, kv_seqlens=longer, kv_lens=batch.kv_lens + 1)
            super().run(call, batch, plan)

    with pytest.raises(AssertionError, match="out is off by inf"):
        verify(Beyond(), attention_call([3, 5]))


@pytest.mark.parametrize("make", GENERATORS.values(), ids=GENERATORS)
def test_calls_are_seeded_and_copied_whole(make):
    a, b = make([3, 9], seed=4), make([3, 9], seed=4)
    other = make([3, 9], seed=5)
    copy = a.clone()
    for name, tensor in a.tensors.items():
        if tensor is None:
            continue
        assert same_bits(tensor, b.tensors[name])
        assert copy.tensors[name].stride() == tensor.stride()
        assert copy.tensors[name].data_ptr() != tensor.data_ptr()
        assert same_bits(tensor, copy.tensors[name])
    first = a.contract.inputs[0]
    assert not same_bits(a.tensors[first], other.tensors[first])
    assert a.out.isnan().all()


def test_a_schedule_that_leaves_rows_out():
    with pytest.raises(ValueError, match=r"\[\[2\]\], the sequences have \(3,\) rows"):
        run_in_steps(TorchGatedDelta(), gated_delta_call([3]), [[2]])
