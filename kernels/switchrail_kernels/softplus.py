"""The activation of raw gates and of raw time steps."""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def softplus(b_x):
    """log(1 + e^x) in float32, accurate for small results: max(x, 0) + log(1 + e^-|x|).

    log(1 + y) is computed as the series of 2 artanh(y / (2 + y)).
    """
    b_y = tl.exp(-tl.abs(b_x))
    b_y = b_y / (2.0 + b_y)
    b_z = b_y * b_y
    b_sum = 1 / 9 + b_z * (1 / 11 + b_z * (1 / 13))
    b_sum = 1 / 3 + b_z * (1 / 5 + b_z * (1 / 7 + b_z * b_sum))
    return tl.maximum(b_x, 0.0) + 2.0 * b_y * (1.0 + b_z * b_sum)
