"""Linear layers with the same input, computed as one matrix product."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import torch
from torch import nn

from switchrail.engine.models.operations import Binding, either, prepared
from switchrail.engine.models.stack import stack
from switchrail.platforms.operations import Products
from switchrail.platforms.serving import Forward


class Product:
    """The common matrix product of several linear layers.

    The first layer that is called with an input computes the results of all layers. A layer that is called
    with a different input computes all results again, so any order of calls is correct.
    """

    def __init__(self, function: Forward, layers: list[nn.Linear]) -> None:
        """Move the layers' weights into one tensor, and make the layers use this product.

        Args:
            function: The operation's function.
            layers: Linear layers without biases. After a call of the last one, the results are dropped.
        """
        self._function = function
        self._sizes = [layer.out_features for layer in layers]
        self._weight = stack(*(layer.weight for layer in layers))
        self._x: torch.Tensor | None = None
        self._parts: tuple[torch.Tensor, ...] = ()
        for index, layer in enumerate(layers):
            layer.__dict__["forward"] = partial(self._part, index)

    def split(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The results of all layers."""
        return torch.split(self._function(x, self._weight), self._sizes, dim=-1)

    def _part(self, index: int, x: torch.Tensor) -> torch.Tensor:
        if self._x is not x:
            self._parts = self.split(x)
            self._x = x
        found = self._parts[index]
        if index == len(self._sizes) - 1:
            self._x, self._parts = None, ()
        return found


def _prepare(function: Forward, module: Any) -> Product:
    return Product(either(function, Products), [module.q_proj, module.k_proj, module.v_proj])


def qkv(module: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values of a softmax layer, from one product if the layer has been prepared."""
    product: Product | None = prepared(module)
    return (module.q_proj(x), module.k_proj(x), module.v_proj(x)) if product is None else product.split(x)


def _suits(module: Any) -> bool:
    return all(layer.bias is None for layer in (module.q_proj, module.k_proj, module.v_proj))


QKV: Final = Binding(Products, None, _suits, _prepare)
"""The projections of queries, keys and values in a softmax layer, as one product."""
