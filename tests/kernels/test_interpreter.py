"""`avoid_repeated_work` makes Triton's interpreter faster, and doesn't change results."""

from __future__ import annotations

import importlib.util

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with a GPU nothing is interpreted", allow_module_level=True)

import triton
import triton.language as tl
from triton.runtime import interpreter

from tests import operators

where_replaced = pytest.mark.skipif(
    tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9),
    reason="before Triton 3.9 the interpreter has other functions, which `avoid_repeated_work` leaves alone",
)


@triton.jit
def doubled(b_x):
    return b_x * 2 + tl.zeros_like(b_x)


@triton.jit
def double(p_x, p_y, N: tl.constexpr):
    for i in tl.range(N):
        tl.store(p_y + i, doubled(doubled(tl.load(p_x + i))))


@where_replaced
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
        assert vars(tl) == language, "a launch must restore the functions that it replaces"
    assert 0 < counts[1] == counts[2]


@triton.jit
def operate(p_a, p_b, p_out, N: tl.constexpr, B: tl.constexpr):
    o_n = tl.arange(0, N)
    o_b = tl.arange(0, B)
    b_a = tl.load(p_a + o_n[:, None] * B + o_b[None, :])
    b_b = tl.load(p_b + o_b)
    same = b_a == b_b[None, :]
    b_sum = (b_a + b_b[None, :]) - (1 - b_a) * 2
    b_out = tl.where((b_a < b_b) & (o_n < N - 1)[:, None] | same, b_sum, b_b / 3.0 - b_a)
    tl.store(
        p_out + (o_n % 4 * B)[:, None] + (o_n // 4 * 4 * B)[:, None] + o_b, b_out.to(p_out.dtype.element_ty)
    )


@where_replaced
@pytest.mark.parametrize("other", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64])
def test_shortcuts_compute_the_same_bits(monkeypatch, dtype, other):
    """Shortcuts serve only those types for which the original operators give the same results."""
    a, b = torch.randn(8, 4).mul(3).to(dtype), torch.randn(4).mul(3).to(other)
    b[2] = a[1, 2]

    def compute():
        out = torch.zeros(8, 4, dtype=torch.promote_types(dtype, torch.float32))
        operate[(1,)](a, b, out, N=8, B=4)
        return out

    def forget():
        for known in operators.KNOWN.values():
            known.clear()

    forget()
    with monkeypatch.context() as patch:
        patch.setattr(operators, "_compare", lambda *_: None)
        expected = compute()
    forget()
    results = [compute(), compute()]  # the second time with shortcuts
    assert any(result for known in operators.KNOWN.values() for result in known.values())
    assert len(expected.unique()) > 8
    assert all(torch.equal(result.view(torch.int32), expected.view(torch.int32)) for result in results)


@triton.jit
def compare(p_x, p_out, C: tl.constexpr):
    tl.store(p_out, (tl.load(p_x) < C).to(tl.int32))


@where_replaced
def test_a_number_out_of_range_is_refused_after_others():
    """A shortcut that serves the types of a comparison doesn't hide an error in a kernel."""
    x, out = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    for _ in range(2):
        compare[(1,)](x, out, C=3)
        with pytest.raises(Exception, match="out of range for type int32"):
            compare[(1,)](x, out, C=2**31)


@triton.jit
def combine_bools(p_a, p_b, p_out, DIFFERENCE: tl.constexpr):
    a, b = tl.load(p_a) != 0, tl.load(p_b) != 0
    tl.store(p_out, (a - b if DIFFERENCE else a + b).to(tl.int32))


@where_replaced
@pytest.mark.parametrize("difference", [False, True])
def test_sums_of_bools_are_those_of_the_interpreter(difference):
    """In numpy, True + True is true; in Triton, it is false."""
    zero, one = torch.tensor([0]), torch.tensor([1])
    found = []
    for a, b in ((zero, one), (one, one)):
        out = torch.zeros(1, dtype=torch.int32)
        combine_bools[(1,)](a, b, out, DIFFERENCE=difference)
        found.append(int(out))
    assert found == [1, 0]


def test_a_function_is_rewritten_again_if_it_has_changed(tmp_path):
    """Equal functions of several modules are rewritten once, and others again."""
    source = (
        "import triton, triton.language as tl\n@triton.jit\n"
        "def write(p_out, N: tl.constexpr = 3):\n    tl.store(p_out, tl.program_id(0) + N * 1)\n"
    )
    found = []
    for old, new in (("", ""), ("", ""), ("* 1", "* 2"), ("= 3", "= 4")):
        path = tmp_path / f"rewritten_{len(found)}.py"
        path.write_text(source.replace(old, new))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        out = torch.zeros(1, dtype=torch.int32)
        module.write[(1,)](out)
        found.append(int(out))
    assert found == [3, 3, 6, 4]
