"""Acme's memory: tensors at aligned addresses, and an allocator that takes the lowest free pages."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from math import prod

import torch
from switchrail.pools import FreeList, MultiHeadPool, StatePool

ALIGNMENT = 256


def carve(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor at an aligned address within a larger block of bytes."""
    size = prod(shape) * dtype.itemsize
    arena = torch.empty(size + ALIGNMENT, dtype=torch.uint8, device=device)
    start = -arena.data_ptr() % ALIGNMENT
    return arena[start : start + size].view(dtype).view(shape)


class AcmeKVPool(MultiHeadPool):
    """Keys and values at aligned addresses; counts the tokens written.

    Attributes:
        written: The number of tokens written; a token counts once for each layer.
    """

    written = 0

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return carve(shape, dtype, device)

    def write(self, layer: int, rows: torch.Tensor, *values: torch.Tensor) -> None:
        self.written += len(rows)
        super().write(layer, rows, *values)


class AcmeStatePool(StatePool):
    """States at aligned addresses."""

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return carve(shape, dtype, device)


class AcmeAllocator(FreeList):
    """Allocates the free pages with the lowest numbers, which keeps the pages in use close together."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        heapq.heapify(self._free)

    def take(self, count: int) -> list[int]:
        assert count <= len(self._free)
        numbers = [heapq.heappop(self._free) for _ in range(count)]
        for number in numbers:
            self._taken[number] = True
        return numbers

    def give(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            assert self._taken[number]
            self._taken[number] = False
            heapq.heappush(self._free, number)
