"""Device functions for gates, which may be raw or already activated."""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from switchrail_kernels.constants import LOG2E
from switchrail_kernels.softplus import softplus


@triton.jit
def log2_decay(b_g, b_rate, b_bias, lower, GATE: tl.constexpr):
    """log2 of the decay, at least -192 (2^-192 is 0 in float32).

    Args:
        b_g: The natural log of the decay, or the raw gate.
        b_rate: exp(A_log).
        b_bias: dt_bias.
        lower: The lower bound of the natural log of the decay; used by the kind `sigmoid` only.
        GATE: The kind: 0 for activated gates, 1 `softplus`, 2 `sigmoid`.
    """
    b_g = b_g.to(tl.float32)
    if GATE != 0:
        b_g += b_bias
    if GATE == 1:
        b_g = -b_rate * softplus(b_g)
    if GATE == 2:
        b_g = lower / (1.0 + tl.exp(-b_rate * b_g))
    return tl.maximum(b_g * LOG2E, -192.0)


@triton.jit
def head_log2_decay(b_g, p_rate, p_bias, i_hv, lower, GATE: tl.constexpr, BIAS: tl.constexpr):
    """`log2_decay` for value head `i_hv`, whose A_log is `p_rate[i_hv]` and whose bias is `p_bias[i_hv]`."""
    b_rate = 0.0
    b_bias = 0.0
    if GATE != 0:
        b_rate = tl.exp(tl.load(p_rate + i_hv).to(tl.float32))
    if BIAS:
        b_bias = tl.load(p_bias + i_hv).to(tl.float32)
    return log2_decay(b_g, b_rate, b_bias, lower, GATE)


@triton.jit
def write_weight(b_beta, scale, RAW: tl.constexpr):
    """The write weight: beta, or `scale` times the sigmoid of a raw beta if RAW."""
    b_beta = b_beta.to(tl.float32)
    if RAW:
        b_beta = scale / (1.0 + tl.exp(-b_beta))
    return b_beta
