"""The operation `rms_norm` of `switchrail.platforms` in Triton."""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from switchrail_kernels.dependent import wait
from switchrail_kernels.elementwise.rows import block, dense_like, row_offsets, rows_of
from switchrail_kernels.launch import Launcher


@triton.jit
def _normalize(
    p_x, p_weight, p_out, rows, inner, s_outer, s_inner, eps, offset,
    D: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    o_r = tl.program_id(0) * BR + tl.arange(0, BR)
    o_d = tl.arange(0, BD)
    mask = (o_r < rows)[:, None] & (o_d < D)[None, :]
    o_x = row_offsets(o_r, inner, s_outer, s_inner)
    b_weight = tl.load(p_weight + o_d, mask=o_d < D, other=0.0).to(tl.float32) + offset
    wait(EARLY)
    b_x = tl.load(p_x + o_x[:, None] + o_d[None, :], mask=mask, other=0.0).to(tl.float32)
    b_factor = tl.rsqrt(tl.sum(b_x * b_x, 1) / D + eps)
    b_out = b_x * b_factor[:, None] * b_weight[None, :]
    o_out = o_r.to(tl.int64)[:, None] * D + o_d[None, :]
    tl.store(p_out + o_out, b_out.to(p_out.dtype.element_ty), mask=mask)


_launch = Launcher(_normalize, early=True)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float, weight_offset: float) -> torch.Tensor:
    """Normalise rows; see `switchrail.platforms.operations.RMSNorm`.

    Args:
        x: [..., D]. A strided view is copied only if two strides can't describe its rows, or if its last
            axis is not contiguous.
        weight: [D].
        eps: Added to the mean of squares.
        weight_offset: Added to the weight.

    Returns:
        [..., D], contiguous.
    """
    out, rows, size = dense_like(x)
    if rows:
        x, layout = rows_of(x)
        each, columns, warps = block(rows, size)
        _launch(
            (triton.cdiv(rows, each), 1, 1),
            (x, weight, out),
            (rows, *layout, float(eps), float(weight_offset)),
            (size, each, columns),
            num_warps=warps,
        )
    return out
