"""The operation `gated_rms_norm` of `switchrail.platforms` in Triton."""

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
    p_x, p_gate, p_weight, p_out, rows, inner_x, s_outer_x, s_inner_x, inner_g, s_outer_g, s_inner_g, eps,
    D: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    o_r = tl.program_id(0) * BR + tl.arange(0, BR)
    o_d = tl.arange(0, BD)
    mask = (o_r < rows)[:, None] & (o_d < D)[None, :]
    o_x, o_g = (
        row_offsets(o_r, inner_x, s_outer_x, s_inner_x),
        row_offsets(o_r, inner_g, s_outer_g, s_inner_g),
    )
    b_weight = tl.load(p_weight + o_d, mask=o_d < D, other=0.0).to(tl.float32)
    wait(EARLY)
    b_x = tl.load(p_x + o_x[:, None] + o_d[None, :], mask=mask, other=0.0).to(tl.float32)
    b_gate = tl.load(p_gate + o_g[:, None] + o_d[None, :], mask=mask, other=0.0).to(tl.float32)
    b_factor = tl.rsqrt(tl.sum(b_x * b_x, 1) / D + eps)
    # Rounded as in the model definition.
    b_out = (b_x * b_factor[:, None]).to(p_out.dtype.element_ty).to(tl.float32)
    b_out = (b_out * b_weight[None, :]).to(p_weight.dtype.element_ty).to(tl.float32)
    b_out *= b_gate / (1.0 + tl.exp(-b_gate))
    o_out = o_r.to(tl.int64)[:, None] * D + o_d[None, :]
    tl.store(p_out + o_out, b_out.to(p_out.dtype.element_ty), mask=mask)


_launch = Launcher(_normalize, early=True)


def gated_rms_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Normalise rows and gate them; see `switchrail.platforms.operations.GatedRMSNorm`.

    Args:
        x: [..., D]. A strided view is copied only if its rows need more than two strides, or if its last
            axis is not contiguous.
        gate: [..., D]; copied like x.
        weight: [D], of x's dtype or float32.
        eps: Added to the mean of squares.

    Returns:
        [..., D], contiguous.
    """
    out, rows, size = dense_like(x)
    if rows:
        x, layout = rows_of(x)
        gate, gate_layout = rows_of(gate)
        each, columns, warps = block(rows, size)
        _launch(
            (triton.cdiv(rows, each), 1, 1),
            (x, gate, weight, out),
            (rows, *layout, *gate_layout, float(eps)),
            (size, each, columns),
            num_warps=warps,
        )
    return out
