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


def forget():
    for known in operators.KNOWN.values():
        known.clear()


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


def without_and_with_shortcuts(monkeypatch, compute):
    """The result without shortcuts, and two with them: the first call compares each, the second uses it."""
    forget()
    with monkeypatch.context() as patch:
        patch.setattr(operators, "_compare", lambda *_: None)
        expected = compute()
    forget()
    return expected, [compute(), compute()]


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

    expected, results = without_and_with_shortcuts(monkeypatch, compute)
    assert any(result for known in operators.KNOWN.values() for result in known.values())
    assert len(expected.unique()) > 8
    assert all(torch.equal(result.view(torch.int32), expected.view(torch.int32)) for result in results)


@triton.jit
def load_and_multiply(p_x, p_y, p_out, p_ints):
    o_n = tl.arange(0, 16)
    o_wide = o_n.to(tl.int64)
    o_nn = o_n[:, None] * 16 + o_wide[None, :]
    m_nn = (o_n < 9)[:, None] & (o_n < 12)[None, :]
    b_x = tl.load(p_x + o_nn)
    b_out = tl.dot(b_x, tl.load(p_y + 3 + o_nn, mask=m_nn, other=0.0), input_precision="ieee")
    b_out = tl.dot(b_x, tl.load(p_y + -3 + o_nn, mask=m_nn & (o_nn > 2)), acc=b_out, input_precision="ieee")
    tl.store(p_out + o_nn, tl.where(o_nn % 3 == 0, b_out, tl.where(m_nn, 0.5, b_x)))
    o_less = o_n - tl.load(p_ints + 1)
    tl.store(p_ints + 2 + o_n, o_less // 3 * 10000 + o_less // tl.load(p_ints) * 100 + (o_less >> 2) + o_wide)


@where_replaced
def test_shortcuts_of_functions_compute_the_same_bits(monkeypatch):
    x, y = torch.randn(2, 16, 16)

    def compute():
        out, ints = torch.zeros(16, 16), torch.tensor([-4, 7, *[0] * 16], dtype=torch.int32)
        load_and_multiply[(1,)](x, y, out, ints)
        return torch.cat([out.flatten(), ints])

    expected, results = without_and_with_shortcuts(monkeypatch, compute)
    served = {"load", "where", "dot", "__floordiv__", "__rshift__"}
    assert served <= {name for name, known in operators.KNOWN.items() if any(known.values())}
    assert all(torch.equal(result, expected) for result in results)
    rows = torch.arange(16) - 7
    quotients = [torch.div(rows, each, rounding_mode="trunc") for each in (3, -4)]
    ints = quotients[0] * 10000 + quotients[1] * 100 + (rows >> 2) + torch.arange(16)
    assert results[1][258:].tolist() == ints.tolist()


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
