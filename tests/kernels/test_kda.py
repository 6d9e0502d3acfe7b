import pytest
import torch
from switchrail.testing.compare import verify
from switchrail.testing.inputs import kda_call
from switchrail_kernels.kda.triton import TritonKda

SMALL = {"heads": 1, "value_heads": 2, "key_size": 16, "value_size": 16}


@pytest.fixture
def backend():
    return TritonKda()


def test_gates_at_which_one_product_no_longer_does(backend, device, dtype):
    for largest in (0.4, 2.0, 2.8, 6.0):  # the limit is on the sum of 16 rows' gates
        call = kda_call([96], gate="one", dtype=dtype, device=device, **SMALL)
        call.tensors["g"].copy_(-largest * torch.rand(96, 2, 16, generator=torch.manual_seed(0)))
        verify(backend, call)


@pytest.mark.parametrize("every", [24])
def test_states_kept_on_the_way(backend, device, every):
    call = kda_call([70, 0, 24, 65], gate="mixed", padding=(2,), device=device, **SMALL)
    verify(backend, call.with_checkpoints(every))


KIMI_LINEAR = {"heads": 32, "value_heads": 32, "key_size": 128, "value_size": 128}


@pytest.mark.gpu
@pytest.mark.parametrize("gate", ["decaying", "one", "mixed"])
def test_kimi_linear_sizes(backend, device, dtype, gate):
    verify(backend, kda_call([1, 0, 200, 64, 63], gate=gate, dtype=dtype, device=device, **KIMI_LINEAR))
    verify(backend, kda_call([1] * 7, phase="decode", gate=gate, dtype=dtype, device=device, **KIMI_LINEAR))


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(64, 64), (128, 256), (256, 128), (256, 256)], ids=str)
def test_large_head_sizes(backend, device, dtype, sizes):
    sizes = {"key_size": sizes[0], "value_size": sizes[1]}
    verify(backend, kda_call([130, 5], gate="mixed", dtype=dtype, device=device, **sizes))
