"""The memory layout of a tensor's rows, and the number of rows per program."""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from switchrail_kernels.launch import padded

_FEW = 2048
"""Maximum number of rows for which each program has one row."""

_MOST = 4096
"""Maximum elements of a program with several rows."""


class Rows(NamedTuple):
    """A tensor's layout: row r is at `(r // inner) * outer_stride + (r % inner) * inner_stride`."""

    inner: int
    outer_stride: int
    inner_stride: int


@triton.jit
def row_offsets(o_r, inner, s_outer, s_inner):
    """The offsets of rows `o_r`, from the fields of `Rows`."""
    return (o_r // inner).to(tl.int64) * s_outer + (o_r % inner).to(tl.int64) * s_inner


def rows_of(x: torch.Tensor) -> tuple[torch.Tensor, Rows]:
    """The tensor [..., D] and the offsets of its rows.

    The tensor is copied if two strides can't describe the offsets, or if its last axis is not contiguous.
    """
    if x.is_contiguous():
        return x, Rows(1, x.shape[-1], 0)
    groups: list[tuple[int, int]] = []  # sizes and strides, innermost first
    for size, stride in zip(reversed(x.shape[:-1]), reversed(x.stride()[:-1]), strict=True):
        if size == 1:
            continue
        if groups and stride == groups[-1][0] * groups[-1][1]:
            groups[-1] = groups[-1][0] * size, groups[-1][1]
        else:
            groups.append((size, stride))
    if len(groups) > 2 or x.stride(-1) != 1:
        return rows_of(x.contiguous())
    if len(groups) < 2:
        return x, Rows(1, groups[0][1] if groups else x.shape[-1], 0)
    return x, Rows(groups[0][0], groups[1][1], groups[0][1])


def dense_like(x: torch.Tensor) -> tuple[torch.Tensor, int, int]:
    """A new contiguous tensor of x's shape and dtype, its number of rows, and their size."""
    size = x.shape[-1]
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), x.numel() // size, size


def block(rows: int, size: int) -> tuple[int, int, int]:
    """Rows per program, the padded row size, and warps. A row's result does not depend on `rows`."""
    columns = padded(size)
    each = 1 if rows <= _FEW else max(_MOST // columns, 1)
    return each, columns, min(max(each * columns // 256, 1), 16)
