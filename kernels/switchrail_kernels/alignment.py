"""Strides and alignment of the kernels' inputs: states, caches and queries."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from switchrail.ops.contract import Contract

ALIGNMENT = 16
"""The alignment in bytes that most of the libraries' copies require."""


def is_aligned(tensor: torch.Tensor, alignment: int = ALIGNMENT) -> bool:
    """Whether every row along the last axis starts at an aligned address."""
    size = tensor.element_size()
    return tensor.data_ptr() % alignment == 0 and all(s * size % alignment == 0 for s in tensor.stride()[:-1])


def is_transposed(state: torch.Tensor) -> bool:
    """Whether the last two axes of a pool of states are swapped in memory."""
    return state.stride(-1) != 1 and state.shape[-1] != 1


def gaps(cache: torch.Tensor) -> tuple[int, ...]:
    """The strides of a cache of latents along pages and tokens; zeros if it is dense."""
    return (0, 0) if cache.is_contiguous() else nonzero(cache.stride()[:2])


def nonzero(strides: Iterable[int]) -> tuple[int, ...]:
    """The strides, with 1 in place of 0: as an argument of a kernel, 0 means dense memory."""
    return tuple(stride or 1 for stride in strides)


def fit(queries: torch.Tensor) -> torch.Tensor:
    """The queries, copied if the library can't read them in place.

    The library needs aligned rows and offsets below 2^31 elements.
    """
    if is_aligned(queries) and queries.shape[0] * queries.stride(0) < 2**31:
        return queries
    return queries.clone(memory_format=torch.contiguous_format)


def check_pool(contract: Contract, name: str, pool: torch.Tensor, alignment: int = ALIGNMENT) -> None:
    """Refuse a pool whose rows are not aligned.

    Raises:
        ContractError: A row is not aligned.
    """
    if not is_aligned(pool, alignment):
        raise contract.error(
            name,
            f"rows at addresses that are not multiples of {alignment} bytes",
            "aligned rows for this backend",
        )
