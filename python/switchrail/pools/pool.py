"""The base class of pools."""

from __future__ import annotations

from abc import abstractmethod

import torch


class Pool:
    """A model's memory in numbered pages or slots. A page or slot has the same number in all layers."""

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Allocates a contiguous tensor, which need not be cleared."""
        return torch.empty(shape, dtype=dtype, device=device)

    @abstractmethod
    def tensors(self) -> list[torch.Tensor]:
        """All tensors of all layers, each [pages, ...] or [slots, ...]."""

    def copy(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copies pages or slots, in all layers.

        Args:
            sources: [N] int64, the numbers to copy from.
            targets: [N] int64, the numbers to copy to; no number is both a source and a target.
        """
        for tensor in self.tensors():
            tensor[targets] = tensor[sources]


class PagedPool(Pool):
    """Memory of tokens in pages. All tensors are [pages, page, ...]."""

    def move(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copies tokens, in all layers. Sources are read before targets are written.

        Args:
            sources: [T] int64, rows of the tensors viewed as [pages * page, ...].
            targets: [T] int64, the row to copy each source to. Equal targets have equal sources.
        """
        for tensor in self.tensors():
            rows = tensor.flatten(0, 1)
            rows.index_copy_(0, targets, rows.index_select(0, sources))
