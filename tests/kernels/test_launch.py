"""What decides on a kernel's binary."""

from __future__ import annotations

from itertools import combinations

import pytest

pytest.importorskip("triton")

from switchrail_kernels.launch import _specialization, padded
from triton._C.libtriton import native_specialize_impl
from triton.backends.nvidia.compiler import CUDABackend

NUMBERS = [
    *(0, 1, 2, 15, 16, 17, 32, -1, -16, -17, True, False, 0.0, 1.0, 0.5, float("inf")),
    *(2**31 - 1, 2**31, 2**31 + 1, -(2**31), -(2**31) - 1, -(2**31) - 16, 2**32),
    *(2**63 - 1, 2**63, 2**63 + 1, -(2**63), 2**64 - 1, 2**64 - 16),
]


def test_numbers_are_told_apart_as_triton_tells_them_apart():
    specialized = {(type(n), n): native_specialize_impl(CUDABackend, n, False, True, True) for n in NUMBERS}
    assert len(set(map(tuple, specialized.values()))) > 6
    for left, right in combinations(NUMBERS, 2):
        same = specialized[type(left), left] == specialized[type(right), right]
        assert (_specialization(left) == _specialization(right)) == same, (left, right)


@pytest.mark.parametrize(
    ("size", "least", "expected"), [(1, 1, 1), (3, 1, 4), (64, 1, 64), (65, 16, 128), (2, 16, 16)]
)
def test_padded(size, least, expected):
    assert padded(size, least) == expected
