"""Kernels for normalisation, activations and rotary embeddings, compared with transformers and torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import switchrail
import switchrail.testing
import torch

pytest.importorskip("triton")

from switchrail import SamplingParams
from switchrail.platforms import CpuPlatform
from switchrail_kernels.elementwise import rows
from switchrail_kernels.elementwise.add_rms_norm import add_rms_norm
from switchrail_kernels.elementwise.gated_rms_norm import gated_rms_norm
from switchrail_kernels.elementwise.qk_norm_rope import qk_norm_rope
from switchrail_kernels.elementwise.rms_norm import rms_norm
from switchrail_kernels.elementwise.rotary import rotary
from switchrail_kernels.elementwise.silu_and_mul import sigmoid_gate, silu_and_mul
from torch.nn.functional import silu
from transformers import Qwen3NextConfig
from transformers.models.qwen3_next import modeling_qwen3_next as modelling

CHECKPOINT = Path(__file__).parents[1] / "checkpoints" / "kjv-qwen3-next"
BITS = {torch.float16: torch.int16, torch.bfloat16: torch.int16}


def normal(*shape, dtype, device, seed=0):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=random).to(device, dtype)


def check(found, expected, apart=1):
    """Check that float32 values differ by at most 1e-6 of the largest value.

    Of 16-bit values, fewer than 2% may differ, and only if they are adjacent. For products of rounded values,
    `apart=2` allows one value in between.
    """
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.isfinite().all()
    if found.dtype == torch.float32:
        assert (found - expected).abs().max() <= 1e-6 * expected.abs().max()
        return
    bits = BITS[found.dtype]
    a, b = (x.contiguous().view(bits).int() for x in (found, expected))
    steps = torch.where((a < 0) == (b < 0), (a - b).abs(), (a & 0x7FFF) + (b & 0x7FFF))
    assert steps.max() <= apart
    assert (steps != 0).double().mean() < 0.02


def check_sum(found, expected):
    """Check that sums of rounded products differ by at most 4 epsilons of the row's largest value.

    Fewer than 2% of 16-bit values may differ.
    """
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    error = (found.double() - expected.double()).abs() / expected.double().abs().amax(-1, keepdim=True)
    assert error.max() <= 4 * torch.finfo(found.dtype).eps
    if found.dtype != torch.float32:
        assert (error != 0).double().mean() < 0.02


@pytest.fixture(autouse=True)
def _several_rows_a_program(monkeypatch):
    """Use several rows per program for more than 30 rows, instead of 2,048."""
    monkeypatch.setattr(rows, "_FEW", 30)


def poison(monkeypatch):
    empty = torch.empty

    def filled(*args, **kwargs):
        return empty(*args, **kwargs).fill_(float("nan"))

    monkeypatch.setattr(torch, "empty", filled)


def offset_norm(size, dtype, device):
    module = modelling.Qwen3NextRMSNorm(size, eps=1e-6).to(device, dtype)
    module.weight.data = normal(size, dtype=dtype, device=device, seed=9) / 4
    return module


@pytest.mark.parametrize(
    "shape", [(1, 64), (1, 1, 2048), (1, 5, 100), (2, 3, 4, 256), (3, 8192), (40, 64), (0, 64)]
)
@torch.inference_mode()
def test_rms_norm(shape, dtype, device, monkeypatch):
    module = offset_norm(shape[-1], dtype, device)
    x = 3 * normal(*shape, dtype=dtype, device=device)
    expected = module(x)
    poison(monkeypatch)
    found = rms_norm(x, module.weight, eps=module.eps, weight_offset=1.0)
    if x.numel():
        check(found, expected)
    assert found.shape == expected.shape


@torch.inference_mode()
def test_rms_norm_against_float64(dtype, device):
    x, weight = normal(7, 300, dtype=dtype, device=device), normal(300, dtype=dtype, device=device, seed=1)
    wide = x.double()
    expected = wide * (wide.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()
    found = rms_norm(x, weight, eps=1e-5, weight_offset=0.0)
    error = (found.double() - expected).abs().max() / expected.abs().max()
    assert error < 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("tokens", [1, 5, 20])
@torch.inference_mode()
def test_rms_norm_of_heads_next_to_their_gates(tokens, dtype, device):
    """Tests heads that are next to their gates in memory, as in attention layers, and views with gaps."""
    module = offset_norm(64, dtype, device)
    both = normal(1, tokens, 8, 128, dtype=dtype, device=device)
    views = (
        both[..., 64:],
        both[:, :, ::2, :64],
        both.transpose(1, 2)[..., :64],
        both[..., ::2],
        both.view(1, tokens, 2, 4, 128).transpose(1, 2)[:, :, ::2, 1:3, :64],
    )
    for x in views:
        check(rms_norm(x, module.weight, eps=module.eps, weight_offset=1.0), module(x))


@torch.inference_mode()
def test_a_row_does_not_depend_on_how_many_there_are(dtype, device):
    x, weight = normal(60, 128, dtype=dtype, device=device), normal(128, dtype=dtype, device=device, seed=1)
    every = rms_norm(x, weight, eps=1e-6, weight_offset=1.0)
    some = rms_norm(x[50:53], weight, eps=1e-6, weight_offset=1.0)
    assert torch.equal(every[50:53], some)


@pytest.mark.parametrize("shape", [(1, 64), (32, 128), (1, 9, 4, 128), (41, 96)])
@pytest.mark.parametrize("wide_weight", [False, True])
@torch.inference_mode()
def test_gated_rms_norm(shape, wide_weight, dtype, device, monkeypatch):
    module = modelling.Qwen3NextRMSNormGated(shape[-1]).to(device, torch.float32 if wide_weight else dtype)
    module.weight.data = normal(shape[-1], dtype=module.weight.dtype, device=device, seed=9)
    x, gate = (4 * normal(*shape, dtype=dtype, device=device, seed=i) for i in range(2))
    wider = torch.cat([x, gate], -1)
    expected = module(x, gate)
    poison(monkeypatch)
    for given in (gate, wider[..., shape[-1] :]):
        check(gated_rms_norm(x, given, module.weight, eps=module.variance_epsilon), expected, apart=2)


@pytest.mark.parametrize("shape", [(1, 512), (1, 7, 100), (33, 1500), (0, 64)])
@torch.inference_mode()
def test_silu_and_mul(shape, dtype, device, monkeypatch):
    both = 4 * normal(*shape[:-1], 2 * shape[-1], dtype=dtype, device=device)
    gate, up = both.chunk(2, -1)
    expected = silu(gate) * up
    poison(monkeypatch)
    for arguments in ((gate, up), (gate.clone(), up)):
        found = silu_and_mul(*arguments)
        assert found.shape == expected.shape
        if found.numel():
            check(found, expected, apart=2)


@pytest.mark.parametrize("tokens", [1, 33, 0])
def test_sigmoid_gate(tokens, dtype, device, monkeypatch):
    both = 4 * normal(1, tokens, 6, 40, dtype=dtype, device=device)
    gate, x = both[:, :, 1::2], both[:, :, ::2].contiguous()
    expected = x * torch.sigmoid(gate)
    poison(monkeypatch)
    found = sigmoid_gate(x, gate)
    assert found.is_contiguous()
    if tokens:
        check(found, expected, apart=2)


@pytest.mark.parametrize("tokens", [1, 33, 0])
@torch.inference_mode()
def test_rotary(tokens, dtype, device):
    config = Qwen3NextConfig(
        hidden_size=64, head_dim=256, num_attention_heads=2, max_position_embeddings=262144
    )
    module = modelling.Qwen3NextRotaryEmbedding(config).to(device)
    positions = torch.arange(tokens, device=device)[None] * 7919  # up to 253,408
    x = torch.zeros(1, dtype=dtype, device=device)
    found = rotary(positions, module.inv_freq, scaling=module.attention_scaling, dtype=dtype)
    for mine, own in zip(found, module(x, positions), strict=True):
        assert mine.shape == own.shape == (1, tokens, 64)
        if tokens:
            check(mine, own)


@pytest.mark.parametrize("shape", [(1, 1, 2048), (1, 5, 100), (40, 64), (0, 64)])
@torch.inference_mode()
def test_add_rms_norm(shape, dtype, device, monkeypatch):
    module = offset_norm(shape[-1], dtype, device)
    x, residual = (3 * normal(*shape, dtype=dtype, device=device, seed=i) for i in range(2))
    expected = residual + x
    normed = module(expected)
    poison(monkeypatch)
    total, out = add_rms_norm(x, residual, module.weight, eps=module.eps, weight_offset=1.0)
    assert torch.equal(total, expected)
    assert out.shape == normed.shape
    if out.numel():
        check(out, normed)


@pytest.mark.parametrize("tokens", [1, 3, 33])
@torch.inference_mode()
def test_qk_norm_rope(tokens, dtype, device, monkeypatch):
    """The queries and keys are views of one product, as in attention layers."""
    heads, kv_heads, size, rotated = 4, 2, 80, 32
    q_norm, k_norm = offset_norm(size, dtype, device), offset_norm(size, dtype, device)
    k_norm.weight.data.neg_()
    product = 3 * normal(1, tokens, 2 * heads + kv_heads, size, dtype=dtype, device=device)
    q, k = product[:, :, : 2 * heads : 2], product[:, :, 2 * heads :]
    angles = 9 * normal(1, tokens, rotated // 2, dtype=torch.float32, device=device).repeat(1, 1, 2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    expected = modelling.apply_rotary_pos_emb(q_norm(q), k_norm(k), cos, sin, unsqueeze_dim=2)
    poison(monkeypatch)
    found = qk_norm_rope(q, k, q_norm.weight, k_norm.weight, cos, sin, eps=q_norm.eps, weight_offset=1.0)
    for mine, own in zip(found, expected, strict=True):
        check_sum(mine, own)
    v = product[:, :, 1 : 2 * kv_heads : 2]
    k_cache, v_cache = torch.zeros(2, 9, 4, kv_heads, size, dtype=dtype, device=device)
    places = torch.randperm(36, device=device)[:tokens]
    queries, _ = qk_norm_rope(
        q, k, q_norm.weight, k_norm.weight, cos, sin,
        eps=q_norm.eps, weight_offset=1.0, v=v, cache=(k_cache, v_cache, places),
    )  # fmt: skip
    assert torch.equal(queries, found[0])
    for cache, kept in ((k_cache, found[1]), (v_cache, v)):
        expected = torch.zeros_like(cache).flatten(0, 1).index_copy_(0, places, kept.squeeze(0))
        assert torch.equal(cache.flatten(0, 1), expected)


@pytest.mark.parametrize(
    "functions", [(qk_norm_rope,), (add_rms_norm,), (rms_norm, gated_rms_norm, rotary, silu_and_mul)]
)
def test_an_engine_generates_the_same_tokens_with_these_functions(functions):
    params = SamplingParams(max_new_tokens=4, ignore_eos=True)
    written = []
    for given in (False, True):
        platform = CpuPlatform()
        if given:
            for function in functions:
                platform.serving.register_oot_forward(function.__name__, function)
        with (
            switchrail.testing.isolated() as runtime,
            switchrail.Engine(CHECKPOINT, runtime=runtime, device=platform) as engine,
        ):
            outputs = engine.generate(["In the beginning", "x"], params)
            written.append([output.tokens for output in outputs])
    assert written[0] == written[1]


@pytest.mark.gpu
@torch.inference_mode()
def test_captured_functions_compute_with_new_values():
    device, dtype = torch.device("cuda"), torch.bfloat16
    x, gate = (normal(1, 6, 4, 128, dtype=dtype, device=device, seed=i) for i in range(2))
    weight = normal(128, dtype=dtype, device=device, seed=2)
    positions = torch.arange(6, device=device)[None]
    frequencies = 1 / torch.arange(1, 33, device=device)

    def run():
        return (
            rms_norm(x[..., :64], weight[:64], eps=1e-6, weight_offset=1.0),
            gated_rms_norm(x, gate, weight, eps=1e-6),
            silu_and_mul(x.clone(), gate),
            *add_rms_norm(x, gate, weight, eps=1e-6, weight_offset=1.0),
            *qk_norm_rope(
                x,
                gate,
                weight,
                weight,
                *rotary(positions, frequencies, scaling=1.0, dtype=dtype),
                eps=1e-6,
                weight_offset=1.0,
            ),
        )

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    x.normal_()
    gate.normal_()
    positions.add_(1000)
    graph.replay()
    for found, expected in zip(captured, run(), strict=True):
        assert torch.equal(found, expected)
