"""Raw gates of the delta rule's kernels."""

import pytest
import torch
from switchrail.testing.compare import Error, verify
from switchrail.testing.inputs import gated_delta_call, kda_call
from switchrail_kernels.gated_delta.triton import TritonGatedDelta
from switchrail_kernels.kda.triton import TritonKda


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("raw", "bias"), [("softplus", "float32"), ("softplus", "none"), ("sigmoid", "input")]
)
@pytest.mark.parametrize(
    ("make", "backend", "heads"),
    [
        pytest.param(gated_delta_call, TritonGatedDelta, 2, id="gated_delta"),
        pytest.param(kda_call, TritonKda, 1, id="kda"),
    ],
)
def test_raw_gates_of_either_dtype_with_and_without_a_bias(make, backend, heads, device, raw, bias, phase):
    lengths = [1] * 3 if phase == "decode" else [40, 0, 3]
    options = {"phase": phase, "raw": raw, "beta_scale": 2.0, "gate": "mixed", "dtype": torch.float16}
    call = make(lengths, heads=heads, value_heads=2 * heads, device=device, padding=(2,), **options)
    if bias == "input":
        call.tensors["dt_bias"] = call.tensors["dt_bias"].half()
    if bias == "none":
        call.tensors["dt_bias"] = None
        call.tensors["g"], call.tensors["beta"] = call.tensors["g"].float(), call.tensors["beta"].float()
    verify(backend(), call, bound=Error(6e-3, 3e-2))  # beta up to 2
