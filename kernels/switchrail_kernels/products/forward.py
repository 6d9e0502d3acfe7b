"""The operation `products` of `switchrail.platforms`: in Triton for very few rows, otherwise by torch.

A program loads all of its weights before it waits for earlier kernels. So weights are already loaded while
earlier kernels, which may leave the memory idle, still run.
"""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN201, ANN202, SIM102
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch.nn.functional import linear

from switchrail_kernels.dependent import wait
from switchrail_kernels.launch import Launcher, padded
from switchrail_kernels.softplus import softplus

MOST_ROWS = 2
"""Maximum number of rows that the kernel takes."""

_WEIGHTS = 16384
"""Weights per program."""


@triton.jit
def log_decay(b_a, b_A, b_bias):
    """The log of the decay of a gated delta layer, for raw gates `b_a`, the log of the rate and the bias."""
    return -tl.exp(b_A) * softplus(b_a + b_bias)


@triton.jit
def _multiply(
    p_x, p_weight, p_out, p_A_log, p_dt_bias, p_g, p_beta, s_x, N, HV,
    K: tl.constexpr, M: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GATES: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Compute `BN` columns of the product, for all rows. With GATES, also compute gates; see `Gates`."""
    o_n = tl.program_id(0) * BN + tl.arange(0, BN)
    o_k = tl.arange(0, BK)
    m_n = o_n < N
    mask = m_n[:, None]
    if K != BK:
        mask = mask & (o_k < K)[None, :]
    b_w = tl.load(p_weight + o_n.to(tl.int64)[:, None] * K + o_k[None, :], mask=mask, other=0.0)
    if GATES:
        o_a = o_n - (N - HV)
        o_b = o_a + HV
        m_a = m_n & (o_a >= 0)
        m_b = (o_b >= 0) & (o_a < 0)
        b_A = tl.load(p_A_log + o_a, mask=m_a, other=0.0).to(tl.float32)
        b_bias = tl.load(p_dt_bias + o_a, mask=m_a, other=0.0).to(tl.float32)
    wait(EARLY)
    for m in tl.static_range(M):
        b_x = tl.load(p_x + m * s_x + o_k, mask=o_k < K, other=0.0).to(tl.float32)
        b_y = tl.sum(b_w.to(tl.float32) * b_x[None, :], 1).to(p_out.dtype.element_ty)
        tl.store(p_out + m * N + o_n, b_y, mask=m_n)
        if GATES:
            if tl.program_id(0) * BN + BN > N - 2 * HV:
                b_raw = b_y.to(tl.float32)
                b_weight = 1.0 / (1.0 + tl.exp(-b_raw))
                tl.store(p_g + m * HV + o_a, log_decay(b_raw, b_A, b_bias), mask=m_a)
                tl.store(p_beta + m * HV + o_b, b_weight.to(p_beta.dtype.element_ty), mask=m_b)


_launch = Launcher(_multiply, early=True)


class Gates(NamedTuple):
    """Gates of a gated delta layer, computed with the product.

    The last columns of the product are raw write weights [HV], then raw gates [HV].

    Attributes:
        A_log: [HV], the log of the rate.
        dt_bias: [HV], added to a raw gate.
        g: [M, HV] float32, receives the log of the decay.
        beta: [M, HV], receives the write weight.
    """

    A_log: torch.Tensor
    dt_bias: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor


def multiply(x: torch.Tensor, weight: torch.Tensor, gates: Gates | None = None) -> torch.Tensor | None:
    """Multiply rows by weights in Triton.

    Args:
        x: [..., D].
        weight: [N, D].
        gates: The gates to compute too, if any.

    Returns:
        [..., N]; None, without computing anything, if the kernel does not support the tensors.
    """
    columns, size = weight.shape
    rows = x.numel() // size
    block = _WEIGHTS // padded(size)
    narrow = x.dtype == weight.dtype and x.dtype in (torch.float16, torch.bfloat16)
    dense = x.stride(-1) == 1 and weight.is_contiguous()
    if not (0 < rows <= MOST_ROWS and block and narrow and dense):
        return None
    out = torch.empty((*x.shape[:-1], columns), dtype=x.dtype, device=x.device)
    x = x.reshape(rows, size)
    _launch(
        (triton.cdiv(columns, block), 1, 1),
        (x, weight, out, *((out, out, out, out) if gates is None else gates)),
        (x.stride(0), columns, 0 if gates is None else gates.g.shape[1]),
        (size, rows, block, padded(size), gates is not None),
        num_warps=4,
    )
    return out


def products(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiply rows by weights; see `switchrail.platforms.operations.Products`.

    Args:
        x: [..., D].
        weight: [N, D].

    Returns:
        [..., N].
    """
    out = multiply(x, weight)
    return linear(x, weight) if out is None else out
