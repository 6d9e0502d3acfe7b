"""Caches whose tokens are so far apart that offsets within a page exceed the range of int32."""

import dataclasses

import pytest
import torch
from switchrail.testing.inputs import attention_call, mla_call
from switchrail_kernels.attention.triton import TritonAttention
from switchrail_kernels.mla.triton import TritonMla

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU would allocate all of the memory")

STRIDE = 720_000_000
PAGE = 4


def spread(pool):
    """The pool with `STRIDE` elements between the tokens of a page; only the used part takes real memory."""
    memory = torch.empty((PAGE - 1) * STRIDE + pool.numel(), dtype=pool.dtype)
    width = pool[0, 0].numel()
    strides = (width, STRIDE, *pool.stride()[2:])
    view = memory.as_strided(pool.shape, strides)
    view.copy_(pool)
    return view


@pytest.mark.parametrize(
    ("make", "backend", "phase", "options"),
    [
        pytest.param(attention_call, TritonAttention, "decode", {"kv_heads": 1}, id="attention"),
        pytest.param(mla_call, TritonMla, "decode", {"absorbed": True}, id="absorbed"),
        pytest.param(mla_call, TritonMla, "prefill", {}, id="expanded"),
    ],
)
def test_tokens_far_apart(make, backend, phase, options):
    lengths = [1] if phase == "decode" else [130]
    call = make(lengths, phase=phase, kv_lengths=[lengths[0] + 6], page=PAGE, dtype=torch.float16, **options)
    pools = {
        name: spread(call.tensors[name])
        for name in ("k_cache", "v_cache", "kv_cache")
        if name in call.tensors
    }
    far = dataclasses.replace(call, tensors={**call.tensors, **pools})
    expected = call.clone()
    expected.run(backend())
    far.run(backend())
    assert torch.equal(far.out, expected.out)
