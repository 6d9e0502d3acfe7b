"""The time steps of `mamba2`; `lightning` has none."""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from switchrail_kernels.softplus import softplus


@triton.jit
def time_step(b_dt, b_bias, dt_min, dt_max, SOFTPLUS: tl.constexpr):
    """The time step: the raw time step plus the bias, then softplus, then the limits."""
    b_dt = b_dt.to(tl.float32) + b_bias
    if SOFTPLUS:
        b_dt = softplus(b_dt)
    return tl.minimum(tl.maximum(b_dt, dt_min), dt_max)
