"""The operation `gated_delta_inputs`: a matrix product, and the gates computed from its last columns."""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.nn.functional import linear

from switchrail_kernels.dependent import wait
from switchrail_kernels.launch import Launcher, padded
from switchrail_kernels.products.forward import Gates, log_decay, multiply

BLOCK = 256
"""Approximate number of gates per program."""


@triton.jit
def gates(
    p_b, p_A_log, p_dt_bias, p_g, p_beta, s_row, T, HV, BT: tl.constexpr, BH: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Compute log decays and write weights. Rows at `p_b` have HV raw write weights, then HV raw gates."""
    o_t = tl.program_id(0) * BT + tl.arange(0, BT)
    o_h = tl.arange(0, BH)
    mask = (o_t < T)[:, None] & (o_h < HV)[None, :]
    p_row = p_b + o_t.to(tl.int64)[:, None] * s_row + o_h[None, :]
    o_out = o_t.to(tl.int64)[:, None] * HV + o_h[None, :]
    wait(EARLY)
    b_beta = tl.load(p_row, mask=mask, other=0.0).to(tl.float32)
    b_a = tl.load(p_row + HV, mask=mask, other=0.0).to(tl.float32)
    b_A = tl.load(p_A_log + o_h, mask=o_h < HV, other=0.0).to(tl.float32)
    b_bias = tl.load(p_dt_bias + o_h, mask=o_h < HV, other=0.0).to(tl.float32)
    tl.store(p_g + o_out, log_decay(b_a, b_A[None, :], b_bias[None, :]), mask=mask)
    tl.store(p_beta + o_out, (1.0 / (1.0 + tl.exp(-b_beta))).to(p_beta.dtype.element_ty), mask=mask)


_gates = Launcher(gates, early=True)


def gated_delta_inputs(
    x: torch.Tensor, weight: torch.Tensor, A_log: torch.Tensor, dt_bias: torch.Tensor, *, channels: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute a layer's inputs; see `switchrail.platforms.operations.GatedDeltaInputs`."""
    rows, heads = len(x), A_log.shape[0]
    g = torch.empty((rows, heads), dtype=torch.float32, device=x.device)
    beta = torch.empty((rows, heads), dtype=x.dtype, device=x.device)
    product = multiply(x, weight, Gates(A_log, dt_bias, g, beta))
    if product is None:
        product = linear(x, weight)
        if rows:
            block = max(1, BLOCK // padded(heads))
            _gates(
                (triton.cdiv(rows, block), 1, 1),
                (product[:, -2 * heads :], A_log, dt_bias, g, beta),
                (product.stride(0), rows, heads),
                (block, padded(heads)),
                num_warps=2,
            )
    return product[:, :channels], product[:, channels : -2 * heads], g, beta
