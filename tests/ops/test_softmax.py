import math

import pytest
import torch
from switchrail.ops.softmax import attend, merge
from switchrail.testing.compare import Error, measure

FLOAT64 = Error(1e-13, 1e-12)


def tensors(positions, rows=5):
    generator = torch.Generator().manual_seed(positions)
    q = torch.randn(3, rows, 8, dtype=torch.float64, generator=generator)
    k = torch.randn(3, positions, 8, dtype=torch.float64, generator=generator)
    v = torch.randn(3, positions, 4, dtype=torch.float64, generator=generator)
    return q, k, v


@pytest.mark.parametrize("at", [0, 1, 7, 20])
def test_parts_merge_to_the_whole(at):
    q, k, v = tensors(20)
    out, lse = attend(q, k, v, scale=0.3)
    empty = torch.zeros(3, 5, 4, dtype=torch.float64), torch.full((3, 5), -math.inf, dtype=torch.float64)
    first = attend(q, k[:, :at], v[:, :at], scale=0.3) if at else empty
    second = attend(q, k[:, at:], v[:, at:], scale=0.3) if at < 20 else empty
    for a, b in ((first, second), (second, first)):
        merged, total = merge(*a, *b)
        assert measure(merged, out).within(FLOAT64)
        assert measure(total, lse).within(FLOAT64)


def test_nothing_merged_with_nothing_is_nothing():
    out, lse = torch.zeros(2, 4), torch.full((2,), -math.inf)
    merged, total = merge(out, lse, out, lse)
    assert torch.equal(merged, out)
    assert torch.equal(total, lse)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_row_that_sees_nothing(dtype):
    q, k, v = (t.to(dtype) for t in tensors(6))
    mask = torch.ones(5, 6, dtype=torch.bool)
    mask[2] = False
    out, lse = attend(q, k, v, scale=1.0, mask=mask)
    assert not out[:, 2].any()
    assert (lse[:, 2] == -math.inf).all()
    assert out.isfinite().all()


def test_logits_that_overflow_an_exponential():
    q, k, v = (t.float() for t in tensors(6))
    out, lse = attend(1e3 * q, 1e3 * k, v, scale=1.0)
    assert out.isfinite().all()
    assert lse.isfinite().all()
    top = (1e6 * q @ k.mT).argmax(-1)
    assert torch.equal(out, v.gather(1, top[..., None].expand(-1, -1, 4)))


def test_a_sink_scales_the_result_and_adds_to_the_log_sum_exp():
    q, k, v = tensors(6)
    out, lse = attend(q, k, v, scale=1.0)
    sinks = torch.tensor([[-1.0], [0.0], [2.0]], dtype=torch.float64)
    with_sink, total = attend(q, k, v, scale=1.0, sinks=sinks)
    part = (lse.exp() / (lse.exp() + sinks.exp()))[..., None]
    assert measure(with_sink, out * part).within(FLOAT64)
    assert measure(total, (lse.exp() + sinks.exp()).log()).within(FLOAT64)


def test_a_sink_that_overflows_an_exponential():
    q, k, v = (t.float() for t in tensors(6))
    out, lse = attend(q, k, v, scale=1.0, sinks=torch.tensor([[0.0], [300.0], [-300.0]]))
    assert out.isfinite().all()
    assert not out[1].any()
    assert (lse[1] == 300).all()
    assert torch.equal(out[2], attend(q, k, v, scale=1.0)[0][2])
