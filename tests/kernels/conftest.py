"""Kernels run compiled on a GPU, and elsewhere in Triton's interpreter on CPU tensors."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _skip_without_gpu(request):
    if request.node.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device; torch sees none")


@pytest.fixture(scope="session")
def device():
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


DTYPES = [torch.float32]  # the conformance suite tests 16-bit dtypes in the interpreter
if torch.cuda.is_available():
    DTYPES += [torch.float16, torch.bfloat16]


@pytest.fixture(params=DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def dtype(request):
    return request.param
