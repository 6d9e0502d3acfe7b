"""Tests of launches: which properties select a binary, which parameters the driver gets, and which
versions of Triton are known."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl
from switchrail_kernels import replay
from switchrail_kernels.launch import Launcher, _is_known, _specialization, padded
from switchrail_kernels.replay import Binary
from triton._C.libtriton import native_specialize_impl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler import ASTSource

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


def _kernel(p_x, p_y, n, stride, one, factor, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(p_y + places * stride, tl.load(p_x + places * one) * factor, mask=places < n)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A kernel that is compiled with an empty cache."""
    types = {"p_x": "*fp32", "p_y": "*fp32", "n": "i32", "stride": "i64", "one": "constexpr"}
    signature = {**types, "factor": "fp32", "BLOCK": "constexpr"}
    source = ASTSource(triton.JITFunction(_kernel), signature, {"one": 1, "BLOCK": 64})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    names = ("metadata", "packed_metadata", "src", "asm")
    return {"run": None, "function": 7} | {name: getattr(kernel, name) for name in names}


def test_the_driver_gets_the_parameters_that_the_kernel_declares(compiled):
    binary = Binary(SimpleNamespace(**compiled))
    assert binary.is_plain
    assert binary.threads == 32 * compiled["metadata"].num_warps
    given = binary.parameters([(0, 0), (-2, 256)], (5, -1, 1, 0.5, 64))
    assert given == ((0, 0), (-2, 256), (-1, 5), (-1, 2**64 - 1), (-1, 0x3F000000), (-1, 0), (-1, 0))


@pytest.mark.parametrize(("old", "new"), [(".param .f32", ".param .f64"), (".entry", ".func")])
def test_a_kernel_that_declares_something_else_is_not_plain(compiled, old, new):
    other = compiled | {"asm": {"ptx": compiled["asm"]["ptx"].replace(old, new)}}
    assert not Binary(SimpleNamespace(**other)).is_plain


def test_a_kernel_without_ptx_is_not_plain_and_says_why(compiled):
    replay._warn_without_ptx.cache_clear()
    with pytest.warns(RuntimeWarning, match="without PTX"):
        assert not Binary(SimpleNamespace(**compiled | {"asm": {}})).is_plain


@pytest.mark.parametrize("version", ["3.6.0", "3.7rc1", "3.9.0+rocm7", "3.8.0.post1"])
def test_versions_whose_launches_are_known(monkeypatch, version):
    monkeypatch.setattr(triton, "__version__", version)
    _is_known.cache_clear()
    try:
        assert _is_known()
    finally:
        _is_known.cache_clear()


def test_other_versions_of_triton_launch_themselves(monkeypatch):
    launched = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *arguments, **options: launched.append(arguments) or object()

    monkeypatch.setattr(triton, "__version__", "3.10.0+git1")
    _is_known.cache_clear()
    launch, x = Launcher(Kernel()), torch.zeros(4)
    try:
        with pytest.warns(RuntimeWarning, match=r"got 3\.10\.0"):
            launch((1, 1, 1), (x,), (2,), (), num_warps=4)
        launch((1, 1, 1), (x,), (2,), (), num_warps=4)
    finally:
        _is_known.cache_clear()
    assert launched == [(x, 2), (x, 2)]
