"""Where copies of several bytes at once ask that rows begin: those of libraries and of our Gluon kernels."""

from __future__ import annotations

import torch
from switchrail.ops.contract import Contract

ALIGNMENT = 16
"""Bytes that copies move at once, if nothing else is known of a kernel."""


def is_aligned(tensor: torch.Tensor, alignment: int = ALIGNMENT) -> bool:
    """Whether each row along the last axis begins where such copies can."""
    size = tensor.element_size()
    return tensor.data_ptr() % alignment == 0 and all(s * size % alignment == 0 for s in tensor.stride()[:-1])


def fit(queries: torch.Tensor) -> torch.Tensor:
    """Queries with rows that the library can address: aligned, and less than 2^31 elements apart."""
    if is_aligned(queries) and queries.shape[0] * queries.stride(0) < 2**31:
        return queries
    return queries.clone(memory_format=torch.contiguous_format)


def check_pool(contract: Contract, name: str, pool: torch.Tensor, alignment: int = ALIGNMENT) -> None:
    """Refuses a pool that the library's copies can't read.

    Raises:
        ContractError: It is not aligned.
    """
    if not is_aligned(pool, alignment):
        raise contract.error(
            name,
            f"rows that do not begin at multiples of {alignment} bytes",
            "rows that do, for this backend",
        )


__all__ = ["ALIGNMENT", "check_pool", "fit", "is_aligned"]
