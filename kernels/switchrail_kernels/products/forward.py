"""The operation `products` of `switchrail.platforms`: in Triton for very few rows, otherwise by torch.

A program loads all of its weights before it waits for earlier kernels. So while smaller kernels run and leave
the memory idle, the device already loads as many weights as its registers hold.
"""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.nn.functional import linear

from switchrail_kernels.dependent import wait
from switchrail_kernels.launch import Launcher, padded

MOST_ROWS = 2
"""Maximum number of rows that the kernel takes."""

_WEIGHTS = 16384
"""Weights per program."""


@triton.jit
def _multiply(
    p_x, p_weight, p_out, s_x, N,
    K: tl.constexpr, M: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    o_n = tl.program_id(0) * BN + tl.arange(0, BN)
    o_k = tl.arange(0, BK)
    m_n = o_n < N
    mask = m_n[:, None]
    if K != BK:
        mask = mask & (o_k < K)[None, :]
    b_w = tl.load(p_weight + o_n.to(tl.int64)[:, None] * K + o_k[None, :], mask=mask, other=0.0)
    wait(EARLY)
    for m in tl.static_range(M):
        b_x = tl.load(p_x + m * s_x + o_k, mask=o_k < K, other=0.0).to(tl.float32)
        b_y = tl.sum(b_w.to(tl.float32) * b_x[None, :], 1)
        tl.store(p_out + m * N + o_n, b_y.to(p_out.dtype.element_ty), mask=m_n)


_launch = Launcher(_multiply, early=True)


def products(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiply rows by weights; see `switchrail.platforms.operations.Products`.

    Args:
        x: [..., D].
        weight: [N, D].

    Returns:
        [..., N].
    """
    columns, size = weight.shape
    rows = x.numel() // size
    block = _WEIGHTS // padded(size)
    narrow = x.dtype == weight.dtype and x.dtype in (torch.float16, torch.bfloat16)
    dense = x.stride(-1) == 1 and weight.is_contiguous()
    if not (0 < rows <= MOST_ROWS and block and narrow and dense):
        return linear(x, weight)
    out = torch.empty((*x.shape[:-1], columns), dtype=x.dtype, device=x.device)
    x = x.reshape(rows, size)
    _launch(
        (triton.cdiv(columns, block), 1, 1),
        (x, weight, out),
        (x.stride(0), columns),
        (size, rows, block, padded(size)),
        num_warps=4,
    )
    return out


__all__ = ["MOST_ROWS", "products"]
