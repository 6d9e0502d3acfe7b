"""The plain-torch backends on a GPU, where the host must not read slots, because it would have to wait."""

import pytest
import torch
from switchrail._core import PAGED_OPS
from switchrail.ops.attention.torch import TorchAttention
from switchrail.ops.catalog import OfEach
from switchrail.testing.compare import verify, verify_commit
from switchrail.testing.inputs import GENERATORS, attention_call

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; torch sees none"),
]

TORCH = OfEach(lambda definition: definition.torch)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("padding", [(), (1,), (0, 1, 2, 3)], ids=str)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("op", TORCH)
def test_on_a_gpu(op, phase, padding, dtype):
    backend, make = TORCH[op], GENERATORS[op]
    lengths = [1] * 4 if phase == "decode" else [70, 3, 0, 1]
    verify(backend(), make(lengths, phase=phase, padding=padding, dtype=dtype, device="cuda"))


@pytest.mark.parametrize("head_size", [24, 64, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_attention_after_a_past(dtype, head_size):
    call = attention_call(
        [300, 65, 2], kv_lengths=[1000, 700, 900], head_size=head_size, dtype=dtype, device="cuda"
    )
    verify(TorchAttention(), call)


STATEFUL = [op for op in TORCH if op not in PAGED_OPS]


@pytest.mark.parametrize("phase", ["prefill", "decode", "verify"])
@pytest.mark.parametrize("op", TORCH)
def test_the_host_never_waits(op, phase):
    backend, make = TORCH[op], GENERATORS[op]
    call = make([1] * 4 if phase == "decode" else [70, 3, 0, 1], phase=phase, padding=(1,), device="cuda")
    accepted = torch.tensor([60, 0, 0, -1], device="cuda")
    call.clone().run(backend())
    torch.cuda.set_sync_debug_mode("error")
    try:
        verification = call.run(backend())
        if phase == "verify" and op in STATEFUL:
            verification.commit(accepted, call.state)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("padding", [(), (1,)], ids=str)
@pytest.mark.parametrize("op", STATEFUL)
def test_drafts_and_checkpoints_on_a_gpu(op, padding, dtype):
    backend, make = TORCH[op], GENERATORS[op]
    drafts = make([3, 5, 0, 1], phase="verify", padding=padding, dtype=dtype, device="cuda")
    verify_commit(backend(), drafts)
    verify_commit(backend(), drafts.with_trees())
    call = make([70, 64, 0, 1], padding=padding, dtype=dtype, device="cuda")
    for every in (1, 24, 32):
        verify(backend(), call.with_checkpoints(every))
