"""The platform's operations in plain torch, which torch.compile can fuse; their classes define them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch.nn.functional import linear, silu, softplus

from switchrail.platforms.operations import (
    AddRMSNorm,
    GatedDeltaInputs,
    GatedRMSNorm,
    Operation,
    Products,
    QKNormRope,
    RMSNorm,
    SigmoidGate,
    SiluAndMul,
)


def _normal(x: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float, weight_offset: float) -> torch.Tensor:
    return (_normal(x, eps) * (weight.float() + weight_offset)).to(x.dtype)


def _add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float, weight_offset: float
) -> tuple[torch.Tensor, torch.Tensor]:
    total = residual + x
    return total, _rms_norm(total, weight, eps=eps, weight_offset=weight_offset)


def _gated_rms_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    return (weight * _normal(x, eps).to(x.dtype) * silu(gate.float())).to(x.dtype)


def _qk_norm_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    eps: float,
    weight_offset: float,
    v: torch.Tensor | None = None,
    cache: None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`cache` must be None, since compiled code accesses caches only through operators."""
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
    return tuple(  # type: ignore[return-value]
        _rotate(_rms_norm(x, weight, eps=eps, weight_offset=weight_offset), cos, sin)
        for x, weight in ((q, q_weight), (k, k_weight))
    )


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    size = cos.shape[-1]
    turned, rest = x[..., :size], x[..., size:]
    first, second = turned.chunk(2, dim=-1)
    return torch.cat([turned * cos + torch.cat([-second, first], dim=-1) * sin, rest], dim=-1)


def _silu_and_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return silu(gate) * up


def _sigmoid_gate(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(gate)


def _gated_delta_inputs(
    x: torch.Tensor, weight: torch.Tensor, A_log: torch.Tensor, dt_bias: torch.Tensor, *, channels: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    heads = A_log.shape[0]
    product = linear(x, weight)
    mixed, z, b, a = torch.split(
        product, [channels, product.shape[-1] - channels - 2 * heads, heads, heads], dim=-1
    )
    g = -A_log.float().exp() * softplus(a.float() + dt_bias.float())
    return mixed, z, g, torch.sigmoid(b.float()).to(x.dtype)


FUNCTIONS: Final[Mapping[type[Operation], Callable[..., Any]]] = {
    RMSNorm: _rms_norm,
    AddRMSNorm: _add_rms_norm,
    GatedRMSNorm: _gated_rms_norm,
    QKNormRope: _qk_norm_rope,
    SiluAndMul: _silu_and_mul,
    SigmoidGate: _sigmoid_gate,
    Products: linear,
    GatedDeltaInputs: _gated_delta_inputs,
}
"""The functions by operation. Classes of modules that run other operations are in `Family.opaque`."""
