"""The operation `add_rms_norm` of `switchrail.platforms` in Triton."""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from switchrail_kernels.dependent import wait
from switchrail_kernels.elementwise.rows import block
from switchrail_kernels.launch import Launcher


@triton.jit
def _add(
    p_x, p_residual, p_weight, p_sum, p_out, rows, eps, offset,
    D: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    o_r = tl.program_id(0) * BR + tl.arange(0, BR)
    o_d = tl.arange(0, BD)
    mask = (o_r < rows)[:, None] & (o_d < D)[None, :]
    o_x = o_r.to(tl.int64)[:, None] * D + o_d[None, :]
    b_weight = tl.load(p_weight + o_d, mask=o_d < D, other=0.0).to(tl.float32) + offset
    wait(EARLY)
    b_x = tl.load(p_x + o_x, mask=mask, other=0.0).to(tl.float32)
    b_x += tl.load(p_residual + o_x, mask=mask, other=0.0).to(tl.float32)
    b_sum = b_x.to(p_sum.dtype.element_ty)
    tl.store(p_sum + o_x, b_sum, mask=mask)
    b_x = b_sum.to(tl.float32)
    b_factor = tl.rsqrt(tl.sum(b_x * b_x, 1) / D + eps)
    b_out = b_x * b_factor[:, None] * b_weight[None, :]
    tl.store(p_out + o_x, b_out.to(p_out.dtype.element_ty), mask=mask)


_launch = Launcher(_add, early=True)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float, weight_offset: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add, then normalise the sum; see `switchrail.platforms.operations.AddRMSNorm`.

    Args:
        x: [..., D].
        residual: [..., D].
        weight: [D].
        eps: Added to the mean of squares.
        weight_offset: Added to the weight.

    Returns:
        The sum and its normalisation, contiguous.
    """
    size = x.shape[-1]
    total, out = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    rows = x.numel() // size
    if rows:
        each, columns, warps = block(rows, size)
        _launch(
            (triton.cdiv(rows, each), 1, 1),
            (x.contiguous(), residual.contiguous(), weight, total, out),
            (rows, float(eps), float(weight_offset)),
            (size, each, columns),
            num_warps=warps,
        )
    return total, out
