"""Pages of what softmax layers keep of each token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import ClassVar, Generic, TypeVar

import torch

from switchrail.errors import UnknownLayerError
from switchrail.pools.shapes import KVKind, KVShape, LatentShape

S = TypeVar("S", bound=KVShape | LatentShape)


class KVPool(Generic[S]):
    """The pages of a model's softmax layers of one kind; all layers share the numbers of pages.

    Allocated once; pages come back uncleared. A platform's own class derives from `MultiHeadPool` or
    `LatentPool`; what it changes most often is `allocate`.

    Attributes:
        kind: What its layers keep.
    """

    kind: ClassVar[KVKind]

    def __init__(
        self,
        shapes: Mapping[int, S],
        *,
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocates the pages.

        Args:
            shapes: What each layer keeps, by layer id.
            num_pages: Pages, the reserved one included.
            page_size: Tokens in a page.
            dtype: Of what is kept.
            device: Where it lives.
        """
        self._caches: dict[int, tuple[torch.Tensor, ...]] = {}
        for layer, shape in shapes.items():
            sizes = [(num_pages, page_size, *size) for size in self.token_sizes(shape)]
            self._caches[layer] = tuple(self.allocate(size, dtype, device) for size in sizes)

    @classmethod
    def token_sizes(cls, shape: S) -> tuple[tuple[int, ...], ...]:
        """The shape of what is kept of a token, for each tensor of a layer."""
        raise NotImplementedError

    @classmethod
    def page_bytes(cls, shapes: Iterable[S], page_size: int, dtype: torch.dtype) -> int:
        """Bytes that one page takes over the layers with these shapes."""
        values = sum(prod(size) for shape in shapes for size in cls.token_sizes(shape))
        return page_size * values * dtype.itemsize

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory for one tensor, uncleared and contiguous."""
        return torch.empty(shape, dtype=dtype, device=device)

    def caches(self, layer: int) -> tuple[torch.Tensor, ...]:
        """The tensors of a layer, each [pages, page, ...], as its op's contract has them.

        Raises:
            UnknownLayerError: The pool keeps nothing of that layer.
        """
        try:
            return self._caches[layer]
        except (KeyError, TypeError):
            layers = tuple(self._caches)
            raise UnknownLayerError(
                f"the pool keeps nothing of layer {layer!r}; valid: {', '.join(map(str, layers))}",
                found=layer,
                layers=layers,
            ) from None

    def write(self, layer: int, rows: torch.Tensor, *values: torch.Tensor) -> None:
        """Keeps tokens.

        Args:
            layer: Layer id.
            rows: [T] int64, where each token goes, in the pool seen as [pages * page, ...].
            *values: What is kept of each, as the kind has it.
        """
        for cache, value in zip(self.caches(layer), values, strict=True):
            cache.flatten(0, 1).index_copy_(0, rows, value)

    def copy(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copies pages, in all layers.

        Args:
            sources: [P] int64, the pages to copy.
            targets: [P] int64, where each goes; none of them is a source.
        """
        for tensor in self.tensors():
            tensor[targets] = tensor[sources]

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor that `caches` gives."""
        return [tensor for caches in self._caches.values() for tensor in caches]


class MultiHeadPool(KVPool[KVShape]):
    """Keys and values of multi-head and grouped-query attention, each [pages, page, HKV, D].

    `write` takes keys and values, each [T, HKV, D].
    """

    kind = "mha"

    @classmethod
    def token_sizes(cls, shape: KVShape) -> tuple[tuple[int, ...], ...]:
        """Of the key, and of the value."""
        return ((shape.heads, shape.size),) * 2


class LatentPool(KVPool[LatentShape]):
    """What multi-head latent attention keeps: one tensor [pages, page, R + P], latent before rotary part.

    `write` takes latents [T, R] and rotary parts [T, P].
    """

    kind = "mla"

    def __init__(
        self,
        shapes: Mapping[int, LatentShape],
        *,
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(shapes, num_pages=num_pages, page_size=page_size, dtype=dtype, device=device)
        self._latent_sizes = {layer: shape.latent for layer, shape in shapes.items()}

    @classmethod
    def token_sizes(cls, shape: LatentShape) -> tuple[tuple[int, ...], ...]:
        """Of both parts together."""
        return ((shape.latent + shape.rotary,),)

    def parts(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of a layer's latents [pages, page, R], and of its rotary parts [pages, page, P]."""
        (cache,) = self.caches(layer)
        size = self._latent_sizes[layer]
        return cache[..., :size], cache[..., size:]

    def write(self, layer: int, rows: torch.Tensor, *values: torch.Tensor) -> None:
        """Keeps tokens: their latents [T, R] and rotary parts [T, P]."""
        super().write(layer, rows, torch.cat(values, dim=-1))


__all__ = ["KVPool", "LatentPool", "MultiHeadPool"]
