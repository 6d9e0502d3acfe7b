"""The common base of pools."""

from __future__ import annotations

from abc import abstractmethod

import torch


class Pool:
    """The memory of a model's layers in numbered places, pages or slots, which are the same in all layers."""

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory for one tensor, uncleared and contiguous."""
        return torch.empty(shape, dtype=dtype, device=device)

    @abstractmethod
    def tensors(self) -> list[torch.Tensor]:
        """All tensors of all layers, each [places, ...]."""

    def copy(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copies places, in all layers.

        Args:
            sources: [N] int64, the places to copy.
            targets: [N] int64, where each goes; none of them is a source.
        """
        for tensor in self.tensors():
            tensor[targets] = tensor[sources]


__all__ = ["Pool"]
