"""Triton's interpreter computes the same numbers after `avoid_repeated_work`, with less repeated work."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with a GPU nothing is interpreted", allow_module_level=True)

import triton
import triton.language as tl
from triton.runtime import interpreter


@triton.jit
def doubled(b_x):
    return b_x * 2 + tl.zeros_like(b_x)


@triton.jit
def double(p_x, p_y, N: tl.constexpr):
    for i in tl.range(N):
        tl.store(p_y + i, doubled(doubled(tl.load(p_x + i))))


@pytest.mark.skipif(
    tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9),
    reason="before Triton 3.9 the interpreter has other functions, which `avoid_repeated_work` leaves alone",
)
def test_calls_of_device_functions_replace_nothing_again(monkeypatch):
    replaced = []
    replace = interpreter._patch_builtin

    def count(package, *rest):
        replaced.append(package)
        return replace(package, *rest)

    monkeypatch.setattr(interpreter, "_patch_builtin", count)
    language = vars(tl).copy()
    x = torch.arange(8, dtype=torch.int32)
    counts = []
    for length in (1, 2, 8):  # functions are rewritten in the first launch
        y = torch.zeros_like(x)
        replaced.clear()
        double[(1,)](x, y, N=length)
        counts.append(len(replaced))
        assert y.tolist() == [*(4 * x[:length]).tolist(), *[0] * (8 - length)]
        assert vars(tl) == language, "what a launch has replaced is put back"
    assert 0 < counts[1] == counts[2]
