"""Alignment that vectorized copies require, in libraries and in Gluon kernels."""

from __future__ import annotations

import torch
from switchrail.ops.contract import Contract

ALIGNMENT = 16
"""Default alignment in bytes."""


def is_aligned(tensor: torch.Tensor, alignment: int = ALIGNMENT) -> bool:
    """Whether every row along the last axis is aligned."""
    size = tensor.element_size()
    return tensor.data_ptr() % alignment == 0 and all(s * size % alignment == 0 for s in tensor.stride()[:-1])


def fit(queries: torch.Tensor) -> torch.Tensor:
    """Make queries that the library can address: aligned rows, less than 2^31 elements apart."""
    if is_aligned(queries) and queries.shape[0] * queries.stride(0) < 2**31:
        return queries
    return queries.clone(memory_format=torch.contiguous_format)


def check_pool(contract: Contract, name: str, pool: torch.Tensor, alignment: int = ALIGNMENT) -> None:
    """Refuse a pool that the library's copies can't read.

    Raises:
        ContractError: The pool is not aligned.
    """
    if not is_aligned(pool, alignment):
        raise contract.error(
            name,
            f"rows at addresses that are no multiples of {alignment} bytes",
            "multiples for this backend",
        )


__all__ = ["ALIGNMENT", "check_pool", "fit", "is_aligned"]
