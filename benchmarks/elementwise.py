"""Times operations of layers, such as norms and activations, at Qwen3-Next's widths, after checking them.

    python -m benchmarks.elementwise                  # 1, 32, 256 and 8,192 tokens
    python -m benchmarks.elementwise --tokens 1 8

Prints microseconds per call in a captured graph of several calls, next to those of transformers' operation,
in bfloat16. Each call has its own tensors. Up to 256 tokens, its inputs stay in the L2 cache, as in a real
step, where the previous kernel has just written them. The floor is the number of bytes read and written,
divided by this run's copy bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from switchrail.engine.models.gated_delta_net import GATED_DELTA_NET
from switchrail_kernels.elementwise.add_rms_norm import add_rms_norm
from switchrail_kernels.elementwise.gated_rms_norm import gated_rms_norm
from switchrail_kernels.elementwise.qk_norm_rope import qk_norm_rope
from switchrail_kernels.elementwise.rms_norm import rms_norm
from switchrail_kernels.elementwise.rotary import rotary
from switchrail_kernels.elementwise.silu_and_mul import sigmoid_gate, silu_and_mul
from switchrail_kernels.gated_delta.inputs import gated_delta_inputs
from switchrail_kernels.products.forward import products
from torch.nn.functional import linear, silu, softplus
from transformers import Qwen3NextConfig
from transformers.models.qwen3_next import modeling_qwen3_next as modelling

from benchmarks.arguments import make_parser
from benchmarks.ops.clock import Clock

HIDDEN, INNER = 2048, 512
HEADS, KV_HEADS, SIZE = 16, 2, 256
VALUE_HEADS, VALUE_SIZE = 32, 128
WRONG = 2e-2
"""Relative error above which nothing is timed. It allows for several roundings to bfloat16."""

Run = Callable[[], Any]


class Case(NamedTuple):
    """One operation on its own tensors: our kernel, transformers' module, and the bytes to move."""

    ours: Run
    theirs: Run
    moved: int


def norm(size: int) -> Any:
    module = modelling.Qwen3NextRMSNorm(size).to("cuda", torch.bfloat16)
    module.weight.data.normal_(std=0.3)
    return module


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device="cuda")


def rms_norm_case(tokens: int) -> Case:
    x, module = normal(1, tokens, HIDDEN), norm(HIDDEN)
    ours = partial(rms_norm, x, module.weight, eps=module.eps, weight_offset=1.0)
    return Case(ours, partial(module, x), 4 * x.numel())


def add_rms_norm_case(tokens: int) -> Case:
    x, residual, module = normal(1, tokens, HIDDEN), normal(1, tokens, HIDDEN), norm(HIDDEN)

    def theirs() -> tuple[torch.Tensor, torch.Tensor]:
        total = residual + x
        return total, module(total)

    ours = partial(add_rms_norm, x, residual, module.weight, eps=module.eps, weight_offset=1.0)
    return Case(ours, theirs, 8 * x.numel())


def gated_rms_norm_case(tokens: int) -> Case:
    """The gate is a slice of a product's result, which transformers copies."""
    x, product = normal(tokens, VALUE_HEADS, VALUE_SIZE), normal(tokens, 3 * VALUE_HEADS, VALUE_SIZE)
    gate = product[:, 2 * VALUE_HEADS :]
    module = modelling.Qwen3NextRMSNormGated(VALUE_SIZE).to("cuda", torch.bfloat16)
    return Case(
        partial(gated_rms_norm, x, gate, module.weight, eps=module.variance_epsilon),
        lambda: module(x.reshape(-1, VALUE_SIZE), gate.reshape(-1, VALUE_SIZE)).view(x.shape),
        6 * x.numel(),
    )


def silu_and_mul_case(tokens: int) -> Case:
    gate, up = normal(tokens, INNER), normal(tokens, INNER)
    return Case(partial(silu_and_mul, gate, up), lambda: silu(gate) * up, 6 * gate.numel())


def sigmoid_gate_case(tokens: int) -> Case:
    """The gate is every other head of a product's result."""
    x, product = normal(1, tokens, HEADS, SIZE), normal(1, tokens, 2 * HEADS, SIZE)
    gate = product[:, :, 1::2]
    return Case(partial(sigmoid_gate, x, gate), lambda: x * torch.sigmoid(gate), 6 * x.numel())


def products_case(tokens: int) -> Case:
    """The output projection of a gated delta layer."""
    inner = VALUE_HEADS * VALUE_SIZE
    x, weight = normal(tokens, inner), normal(HIDDEN, inner)
    moved = 2 * (x.numel() + weight.numel() + tokens * HIDDEN)
    return Case(partial(products, x, weight), partial(linear, x, weight), moved)


def rotary_case(tokens: int) -> Case:
    module = modelling.Qwen3NextRotaryEmbedding(Qwen3NextConfig(head_dim=SIZE)).to("cuda")
    positions = torch.randint(0, 100_000, (1, tokens), device="cuda")
    ours = partial(rotary, positions, module.inv_freq, scaling=1.0, dtype=torch.bfloat16)
    moved = tokens * (8 + 2 * 2 * 2 * len(module.inv_freq))
    return Case(ours, partial(module, normal(1), positions), moved)


def qk_norm_rope_case(tokens: int) -> Case:
    product = normal(1, tokens, 2 * HEADS + 2 * KV_HEADS, SIZE)
    q, k = product[:, :, : 2 * HEADS : 2], product[:, :, 2 * HEADS : -KV_HEADS]
    q_norm, k_norm = norm(SIZE), norm(SIZE)
    angles = torch.randn(1, tokens, 32, device="cuda").repeat(1, 1, 2)
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
    return Case(
        partial(qk_norm_rope, q, k, q_norm.weight, k_norm.weight, cos, sin, eps=1e-6, weight_offset=1.0),
        lambda: modelling.apply_rotary_pos_emb(q_norm(q), k_norm(k), cos, sin, unsqueeze_dim=2),
        4 * (q.numel() + k.numel()) + 2 * (cos.numel() + sin.numel()),
    )


def gated_delta_inputs_case(tokens: int) -> Case:
    """Computes the inputs of a layer's convolution and delta rule from the layer's input."""
    x, module = normal(1, tokens, HIDDEN), gated_delta_net()
    given = {name: weight.clone() for name, weight in module.named_parameters()}
    weight = GATED_DELTA_NET.prepare(gated_delta_inputs, module)
    own = gated_delta_net()
    own.load_state_dict(given)

    def theirs() -> tuple[torch.Tensor, ...]:
        q, k, v, z, b, a = own.fix_query_key_value_ordering(own.in_proj_qkvz(x), own.in_proj_ba(x))
        mixed = torch.cat([part.flatten(2) for part in (q, k, v)], -1)
        g = -own.A_log.float().exp() * softplus(a.float() + own.dt_bias)
        return mixed[0], z[0].flatten(1), g[0], b[0].sigmoid()

    rest = {"A_log": module.A_log, "dt_bias": module.dt_bias, "channels": module.conv_dim}
    ours = partial(gated_delta_inputs, x[0], weight, **rest)
    return Case(ours, theirs, 2 * (x.numel() + weight.numel() + tokens * len(weight)))


def gated_delta_net() -> Any:
    with torch.device("cuda"):
        module = modelling.Qwen3NextGatedDeltaNet(Qwen3NextConfig(), 0).to(torch.bfloat16)
    return module.requires_grad_(False)


CASES = (
    rms_norm_case,
    add_rms_norm_case,
    gated_rms_norm_case,
    silu_and_mul_case,
    sigmoid_gate_case,
    products_case,
    rotary_case,
    qk_norm_rope_case,
    gated_delta_inputs_case,
)


def as_list(found: Any) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else list(found)


def check(name: str, case: Case) -> float:
    """The error relative to transformers' result. Exits if it is too large."""
    error = 0.0
    for mine, own in zip(as_list(case.ours()), as_list(case.theirs()), strict=True):
        wide = own.double()
        error = max(error, ((mine.double() - wide).norm() / wide.norm()).item())
    if not error < WRONG:
        raise SystemExit(f"{name}: the relative error is {error:.1e}; valid: below {WRONG:.0e}")
    return error


def graph_us(clock: Clock, runs: Sequence[Run]) -> float:
    return float(clock.measure(runs)["graph_s"]["median"]) * 1e6


def main() -> None:
    parser = make_parser("elementwise", __doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=(1, 32, 256, 8192))
    options = parser.parse_args()
    clock = Clock(torch.device("cuda"))
    bandwidth, _ = clock.ceilings()
    print(f"{torch.cuda.get_device_name()}: copy {bandwidth / 1e12:.2f} TB/s")
    with torch.inference_mode():
        for make in CASES:
            name = make.__name__.removesuffix("_case")
            for tokens in options.tokens:
                cases = [make(tokens) for _ in range(16 if tokens <= 256 else 4)]
                error = check(name, cases[0])
                ours, theirs = (
                    graph_us(clock, runs) for runs in zip(*(case[:2] for case in cases), strict=True)
                )
                floor = cases[0].moved / bandwidth * 1e6
                print(
                    f"{name:16} {tokens:5} tokens: floor {floor:7.2f} | ours {ours:7.2f} | "
                    f"transformers {theirs:8.2f} ({theirs / ours:4.1f}) | error {error:.0e}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
