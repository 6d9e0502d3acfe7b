"""The paged KV cache of softmax layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import ClassVar, Generic, TypeVar

import torch

from switchrail.errors import UnknownLayerError
from switchrail.pools.pool import PagedPool
from switchrail.pools.shapes import KVKind, KVShape, LatentShape

S = TypeVar("S", bound=KVShape | LatentShape)


class KVPool(PagedPool, Generic[S]):
    """The cache pages of a model's softmax layers of one kind. A page has the same number in all layers.

    The memory is allocated once; reused pages are not cleared. A platform's own class derives from
    `MultiHeadPool` or `LatentPool`, and most often overrides `allocate`.

    Attributes:
        kind: The kind of cache: keys and values (`mha`) or latents (`mla`).
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
            shapes: The cache shape of each layer, by layer id.
            num_pages: The number of pages, including the reserved page 0.
            page_size: Tokens per page.
            dtype: The dtype of the cache.
            device: The device of the cache.
        """
        self._shapes = dict(shapes)
        self._caches: dict[int, tuple[torch.Tensor, ...]] = {}
        for layer, shape in shapes.items():
            sizes = [(num_pages, page_size, *size) for size in self.token_sizes(shape)]
            self._caches[layer] = tuple(self.allocate(size, dtype, device) for size in sizes)

    @classmethod
    def token_sizes(cls, shape: S) -> tuple[tuple[int, ...], ...]:
        """The shape of one token's entry in each cache tensor of a layer."""
        raise NotImplementedError

    @classmethod
    def page_bytes(cls, shapes: Iterable[S], page_size: int, dtype: torch.dtype) -> int:
        """Bytes of one page, summed over the layers with these shapes."""
        values = sum(prod(size) for shape in shapes for size in cls.token_sizes(shape))
        return page_size * values * dtype.itemsize

    def caches(self, layer: int) -> tuple[torch.Tensor, ...]:
        """The cache tensors of a layer, each [pages, page, ...], as the contract of its op defines them.

        Raises:
            UnknownLayerError: The pool has no cache for that layer.
        """
        try:
            return self._caches[layer]
        except (KeyError, TypeError):
            layers = tuple(self._caches)
            raise UnknownLayerError(
                f"the pool has no cache for layer {layer!r}; valid: {', '.join(map(str, layers))}",
                found=layer,
                layers=layers,
            ) from None

    def write(self, layer: int, rows: torch.Tensor, *values: torch.Tensor) -> None:
        """Writes tokens into the cache.

        Args:
            layer: Layer id.
            rows: [T] int64, the row of each token in the cache viewed as [pages * page, ...].
            *values: The entries of the tokens; the subclasses list them.
        """
        for cache, value in zip(self.caches(layer), values, strict=True):
            cache.flatten(0, 1).index_copy_(0, rows, value)

    def tensors(self) -> list[torch.Tensor]:
        """All cache tensors of all layers."""
        return [tensor for caches in self._caches.values() for tensor in caches]


class MultiHeadPool(KVPool[KVShape]):
    """Keys and values of multi-head and grouped-query attention, each [pages, page, HKV, D].

    `write` takes keys and values, each [T, HKV, D].
    """

    kind = "mha"

    @classmethod
    def token_sizes(cls, shape: KVShape) -> tuple[tuple[int, ...], ...]:
        """The shape of one token's key, and that of its value."""
        return ((shape.heads, shape.size),) * 2


class LatentPool(KVPool[LatentShape]):
    """The cache of multi-head latent attention: one tensor [pages, page, R + P], latent before rotary part.

    `write` takes latents [T, R] and rotary parts [T, P].
    """

    kind = "mla"

    @classmethod
    def token_sizes(cls, shape: LatentShape) -> tuple[tuple[int, ...], ...]:
        """The shape of one token's latent and rotary part, concatenated."""
        return ((shape.latent + shape.rotary,),)

    def parts(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of a layer's latents [pages, page, R], and of its rotary parts [pages, page, P]."""
        (cache,) = self.caches(layer)
        size = self._shapes[layer].latent
        return cache[..., :size], cache[..., size:]

    def write(self, layer: int, rows: torch.Tensor, *values: torch.Tensor) -> None:
        """Writes the latents [T, R] and rotary parts [T, P] of tokens into the cache."""
        super().write(layer, rows, torch.cat(values, dim=-1))
