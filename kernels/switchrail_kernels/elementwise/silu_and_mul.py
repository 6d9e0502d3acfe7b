"""The operations `silu_and_mul` and `sigmoid_gate` of `switchrail.platforms` in Triton."""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from switchrail_kernels.dependent import wait
from switchrail_kernels.elementwise.rows import dense_like, rows_of
from switchrail_kernels.launch import Launcher, padded


@triton.jit
def _activate(
    p_gate, p_up, p_out, inner_g, s_outer_g, s_inner_g, inner_u, s_outer_u, s_inner_u,
    D: tl.constexpr, BD: tl.constexpr, SILU: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) // tl.cdiv(D, BD)
    o_d = tl.program_id(0) % tl.cdiv(D, BD) * BD + tl.arange(0, BD)
    mask = o_d < D
    o_g = (row // inner_g).to(tl.int64) * s_outer_g + (row % inner_g).to(tl.int64) * s_inner_g
    o_u = (row // inner_u).to(tl.int64) * s_outer_u + (row % inner_u).to(tl.int64) * s_inner_u
    wait(EARLY)
    b_gate = tl.load(p_gate + o_g + o_d, mask=mask, other=0.0).to(tl.float32)
    b_up = tl.load(p_up + o_u + o_d, mask=mask, other=0.0).to(tl.float32)
    # Rounded as in the model definition.
    b_factor = (b_gate if SILU else 1.0) / (1.0 + tl.exp(-b_gate))
    b_out = b_factor.to(p_out.dtype.element_ty).to(tl.float32) * b_up
    tl.store(p_out + row.to(tl.int64) * D + o_d, b_out.to(p_out.dtype.element_ty), mask=mask)


_launch = Launcher(_activate, early=True)


def silu_and_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Multiply silu(gate) by up; see `switchrail.platforms.operations.SiluAndMul`.

    Args:
        gate: [..., D].
        up: [..., D]. `gate` and `up` may be halves of one tensor; they are then not copied.

    Returns:
        [..., D], contiguous.
    """
    return _activated(gate, up, is_silu=True)


def sigmoid_gate(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Multiply x by sigmoid(gate); see `switchrail.platforms.operations.SigmoidGate`.

    Args:
        x: [..., D].
        gate: [..., D].

    Returns:
        [..., D], contiguous.
    """
    return _activated(gate, x, is_silu=False)


def _activated(gate: torch.Tensor, up: torch.Tensor, *, is_silu: bool) -> torch.Tensor:
    out, rows, size = dense_like(gate)
    if rows:
        gate, gate_layout = rows_of(gate)
        up, up_layout = rows_of(up)
        columns = min(padded(size), 1024)
        _launch(
            (rows * triton.cdiv(size, columns), 1, 1),
            (gate, up, out),
            (*gate_layout, *up_layout),
            (size, columns, is_silu),
            num_warps=max(columns // 256, 1),
        )
    return out
