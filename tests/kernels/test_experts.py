"""Tests of the experts' kernels, most of them against a float64 reference."""

from __future__ import annotations

import pytest
import torch
from switchrail.errors import ArgumentError

pytest.importorskip("triton")

from switchrail_kernels.experts import forward
from switchrail_kernels.experts.forward import experts, routed_experts
from switchrail_kernels.experts.tiles import Tile, Tiles
from switchrail_kernels.launch import Launcher
from torch.nn.functional import silu

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
TILES = Tiles(16, Tile(32, 32, 4, 1), Tile(32, 32, 4, 1))


def reference(x, logits, gate_up, down, *, top_k, normalize, shared=0):
    """Computes one row and expert at a time. Of experts with equal logits, the first is preferred."""
    own = logits.shape[1] - shared
    out = torch.zeros(x.shape, dtype=torch.float64)
    for t in range(len(x)):
        scores = logits[t].double().cpu()
        chosen = sorted(range(own), key=lambda e: (-scores[e].item(), e))[:top_k]
        p = torch.softmax(scores[:own], 0)
        total = sum(p[e] for e in chosen) if normalize else 1.0
        weights = {e: p[e] / total for e in chosen}
        weights |= {e: torch.sigmoid(scores[e]) for e in range(own, own + shared)}
        for e, weight in weights.items():
            gate, up = (gate_up[e].double().cpu() @ x[t].double().cpu()).chunk(2)
            out[t] += weight * (down[e].double().cpu() @ (silu(gate) * up))
    return out


def make(t, count, *, shared=0, h=64, inner=48, dtype=torch.float32, device="cpu", seed=0):
    random = torch.Generator().manual_seed(seed)

    def normal(*shape, scale=1.0):
        return (torch.randn(shape, generator=random) * scale).to(device, dtype)

    every = count + shared
    return (
        normal(t, h),
        normal(t, every),
        normal(every, 2 * inner, h, scale=h**-0.5),
        normal(every, h, inner, scale=inner**-0.5),
    )


def poisoned(monkeypatch):
    """Fill new buffers with NaN, and integer buffers with numbers far out of range."""
    empty = torch.empty

    def fill(*args, **kwargs):
        made = empty(*args, **kwargs)
        return made.fill_(float("nan") if made.is_floating_point() else 2**31 - 1)

    monkeypatch.setattr(forward.torch, "empty", fill)


def check(found, expected, dtype):
    error = (found.double().cpu() - expected).norm(dim=-1) / expected.norm(dim=-1).clamp(min=1e-30)
    assert found.isfinite().all()
    assert error.max() < TOLERANCE[dtype]


@pytest.mark.parametrize("shared", [0, 1])
@pytest.mark.parametrize(
    ("t", "count", "top_k"), [(1, 8, 2), (2, 8, 8), (3, 5, 2), (19, 12, 5), (67, 24, 10)]
)
def test_rows_and_experts_of_any_number(t, count, top_k, shared, dtype, device, monkeypatch):
    poisoned(monkeypatch)
    monkeypatch.setattr(forward, "_LOGITS", 256)  # several chunks with few rows
    monkeypatch.setattr(forward, "_ADDED", 4)
    arguments = make(t, count, shared=shared, dtype=dtype, device=device)
    options = {"top_k": top_k, "normalize": t % 2 == 1, "shared": shared}
    check(experts(*arguments, **options), reference(*arguments, **options), dtype)


@pytest.mark.parametrize("t", [1, 40])
def test_all_rows_have_the_same_experts(t, device, monkeypatch):
    poisoned(monkeypatch)
    x, logits, gate_up, down = make(t, 8, device=device)
    logits[:] = torch.tensor([0.0, 9, 0, 8, 0, 0, 0, 0], device=device)
    gate_up[[0, 2, 4, 5, 6, 7]] = float("nan")  # the weights of unused experts are not read
    down[[0, 2, 4, 5, 6, 7]] = float("nan")
    options = {"top_k": 2, "normalize": True}
    check(
        experts(x, logits, gate_up, down, **options), reference(x, logits, gate_up, down, **options), x.dtype
    )


@pytest.mark.parametrize("t", [1, 21])
def test_equal_logits(t, device):
    x, logits, gate_up, down = make(t, 12, device=device)
    logits = logits.round()
    options = {"top_k": 5, "normalize": True}
    check(
        experts(x, logits, gate_up, down, **options), reference(x, logits, gate_up, down, **options), x.dtype
    )


@pytest.mark.parametrize(("t", "real"), [(2, 1), (2, 0), (37, 0), (37, 1), (37, 20), (37, 37), (37, 50)])
def test_rows_of_padding_read_no_expert(t, real, device, monkeypatch):
    poisoned(monkeypatch)
    monkeypatch.setattr(forward, "_LOGITS", 64)
    x, logits, gate_up, down = make(t, 6, shared=1, device=device)
    x[real:] = float("nan")
    logits[real:] = float("nan")
    rows = torch.tensor([real], dtype=torch.int32, device=device)
    options = {"top_k": 2, "normalize": True, "shared": 1}
    used = {e for row in logits[:real, :6].topk(2).indices.tolist() for e in row} | ({6} if real else set())
    for e in set(range(7)) - used:
        gate_up[e] = down[e] = float("nan")
    out = experts(x, logits, gate_up, down, rows=rows, **options)
    expected = reference(x[:real], logits[:real], gate_up, down, **options)
    assert torch.equal(out[real:], torch.zeros_like(out[real:]))
    if real:
        check(out[:real], expected, x.dtype)


@pytest.mark.parametrize("t", [2, 33])
def test_a_row_that_is_not_a_number_leaves_the_others_alone(t, device):
    x, logits, gate_up, down = make(t, 8, device=device)
    expected = experts(x, logits, gate_up, down, top_k=3, normalize=True)
    x[1] = logits[1] = float("nan")
    found = experts(x, logits, gate_up, down, top_k=3, normalize=True)
    assert found[1].isnan().all()
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[2:], expected[2:])


def test_a_row_does_not_depend_on_the_others(device):
    x, logits, gate_up, down = make(41, 8, shared=1, device=device)
    options = {"top_k": 3, "normalize": True, "shared": 1, "sizes": TILES}
    every = experts(x, logits, gate_up, down, **options)
    some = experts(x[7:30], logits[7:30], gate_up, down, **options)
    assert torch.equal(every[7:30], some)
    assert torch.equal(experts(x, logits, gate_up, down, **options), every)


def test_rows_and_logits_may_be_strided(device):
    x, logits, gate_up, down = make(20, 8, device=device)
    options = {"top_k": 3, "normalize": False}
    wide = torch.cat([x, x], 1)[:, : x.shape[1]], torch.cat([logits, logits], 1)[:, :8]
    assert torch.equal(experts(*wide, gate_up, down, **options), experts(x, logits, gate_up, down, **options))


def test_no_rows(device):
    assert experts(*make(0, 8, device=device), top_k=3, normalize=True).shape == (0, 64)


@pytest.mark.parametrize(
    "change",
    [
        {"top_k": 9},
        {"shared": 8},
        {"logits": torch.zeros(3, 7)},
        {"down": torch.zeros(8, 64, 47)},
        {"x": torch.zeros(3, 64, dtype=torch.float16)},
    ],
)
def test_shapes_that_do_not_fit(change):
    names = ("x", "logits", "gate_up", "down")
    arguments = dict(zip(names, make(3, 8), strict=True)) | {"top_k": 2, "normalize": True}
    with pytest.raises(ArgumentError, match=r"expected x \[T, H\]"):
        experts(**(arguments | change))


@pytest.mark.parametrize("t", [1, 9])
def test_results_are_those_of_transformers(t, device):
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextSparseMoeBlock

    config = Qwen3NextConfig(
        hidden_size=64, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, norm_topk_prob=True
    )
    config._experts_implementation = "eager"
    torch.manual_seed(0)
    block = Qwen3NextSparseMoeBlock(config).to(device).eval()
    with torch.inference_mode():
        for weight in block.parameters():
            weight.normal_(std=0.2)
        x = torch.randn(t, 64, device=device)
        logits, weights, chosen = block.gate(x)
        expected = block.experts(x, chosen, weights)
        found = experts(
            x, logits, block.experts.gate_up_proj, block.experts.down_proj, top_k=3, normalize=True
        )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_few_binaries_serve_any_number_of_rows(device, monkeypatch):
    """Triton compiles only a few binaries for 1 to 299 rows."""
    seen = {}

    class Recorder:
        def __init__(self, name):
            self.name = name

        def __call__(self, grid, tensors, numbers, constants, **options):
            aligned = [tensor.data_ptr() % 16 == 0 for tensor in tensors if tensor.numel()]
            seen.setdefault(self.name, set()).add((*aligned, *constants, *options.values()))

    for name in [name for name, value in vars(forward).items() if isinstance(value, Launcher)]:
        monkeypatch.setattr(forward, name, Recorder(name))
    monkeypatch.setattr(forward, "_ADDED", 4)
    for t in range(1, 300):
        x, gate_up = torch.empty(t, 64, device=device), torch.empty(13, 64, 64, device=device)
        logits, down = torch.empty(t, 13, device=device), torch.empty(13, 64, 32, device=device)
        experts(x, logits, gate_up, down, top_k=2, normalize=True, shared=1)
    assert len(seen) == 8
    counts = {name: len(kinds) for name, kinds in seen.items()}
    assert counts.pop("_choose") == 5  # up to 7 rows, 8 rows in one chunk, and chunks of 4, 8 and 32 rows
    assert counts.pop("_order") == 4  # chunks of 4 and of 8 rows, and few or many chunks of 32 rows
    assert set(counts.values()) == {1}


class Again:
    """A call that can be repeated; captured if there is a GPU."""

    def __init__(self, call):
        self.call, self.graph = call, None
        self.out = call()
        if self.out.is_cuda:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.out = call()

    def __call__(self):
        if self.graph is None:
            self.out.copy_(self.call())
        else:
            self.graph.replay()
        return self.out


def check_again(t, *, h, inner, count, top_k, dtype, device):
    """Repeat a call with other rows and other padding in the tensors of the first call."""
    sizes = {"shared": 1, "h": h, "dtype": dtype, "device": device}
    arguments = make(t, count, inner=inner, **sizes)
    x, logits, gate_up, down = arguments
    rows = torch.tensor([t], dtype=torch.int32, device=device)
    options = {"top_k": top_k, "normalize": True, "shared": 1}
    again = Again(lambda: experts(*arguments, rows=rows, **options))
    for seed, real in ((1, t), (2, (t + 1) // 2), (3, 0), (4, t)):
        new, fresh, _, _ = make(t, count, inner=1, seed=seed, **sizes)
        x.copy_(new)
        logits.copy_(fresh)
        rows.fill_(real)
        out = again()
        assert torch.equal(out, experts(*arguments, rows=rows, **options)), f"{real} rows"
        assert not out[real:].any()
        if real:
            some = slice(0, min(real, 3))
            check(out[some], reference(x[some], logits[some], gate_up, down, **options), dtype)


@pytest.mark.parametrize("t", [1, 9])
def test_a_call_made_again(t, device):
    check_again(t, h=64, inner=48, count=6, top_k=2, dtype=torch.float32, device=device)


@pytest.mark.gpu
@pytest.mark.parametrize("t", [1, 2, 32, 300])
def test_a_captured_call_serves_any_number_of_rows(t):
    check_again(t, h=2048, inner=512, count=64, top_k=10, dtype=torch.bfloat16, device="cuda")


@pytest.mark.parametrize(
    ("t", "real", "index"),
    [(1, 1, torch.int32), (2, 1, torch.int64), (19, 19, torch.int64), (67, 40, torch.int32)],
)
def test_experts_that_a_router_chose(t, real, index, dtype, device, monkeypatch):
    poisoned(monkeypatch)
    monkeypatch.setattr(forward, "_LOGITS", 256)
    x, logits, gate_up, down = make(t, 12, dtype=dtype, device=device)
    weights, ids = logits.float().sigmoid().topk(5)
    ids = torch.cat([ids, ids], 1)[:, :5].to(index)  # a strided view
    x[real:] = weights[real:] = float("nan")
    rows = None if real == t else torch.tensor([real], dtype=torch.int32, device=device)
    out = routed_experts(x, ids, weights, gate_up, down, rows=rows)
    expected = torch.zeros(real, x.shape[1], dtype=torch.float64)
    for row in range(real):
        for e, weight in zip(ids[row].tolist(), weights[row].tolist(), strict=True):
            gate, up = (gate_up[e].double().cpu() @ x[row].double().cpu()).chunk(2)
            expected[row] += weight * (down[e].double().cpu() @ (silu(gate) * up))
    check(out[:real], expected, dtype)
    assert torch.equal(out[real:], torch.zeros_like(out[real:]))


def test_choices_that_do_not_fit(device):
    x, logits, gate_up, down = make(3, 8, device=device)
    weights, ids = logits.topk(2)
    for bad in (ids.float(), ids[:2], ids.int().t().contiguous().t(), ids.repeat(1, 5)):
        with pytest.raises(ArgumentError, match="routed_experts can't run"):
            routed_experts(x, bad, weights, gate_up, down)
