"""Linear layers with a common input, computed as one product."""

from __future__ import annotations

from typing import Any

import pytest
import switchrail
import torch
from switchrail.engine.models.products import Product
from switchrail.platforms.operations import Products
from torch import nn
from torch.nn.functional import linear

from tests.engine.test_graphs import OPTIONS, GraphPlatform, Make, captured_runtime, make_prompts, tokens

__all__ = ["captured_runtime"]


class Counted:
    """A function that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return linear(x, weight)


@torch.inference_mode()
def test_layers_take_their_parts_in_any_order() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(8, size, bias=False) for size in (5, 3, 4)]
    a, b = torch.randn(2, 6, 8)
    expected = {(i, name): layer(x) for i, layer in enumerate(layers) for name, x in (("a", a), ("b", b))}
    weights = [layer.weight.clone() for layer in layers]
    function = Counted()
    product = Product(function, layers)
    assert all(torch.equal(layer.weight, weight) for layer, weight in zip(layers, weights, strict=True))
    assert len({layer.weight.untyped_storage().data_ptr() for layer in layers}) == 1
    given = {"a": a, "b": b}
    for order, calls in (("0a 1a 2a", 1), ("0a 0b 1b 1a 2a", 3), ("2a 2a 1b 1b 0b 2b", 3), ("1a 0a 2b", 2)):
        function.calls = 0
        for call in order.split():
            i, name = int(call[0]), call[1]
            torch.testing.assert_close(layers[i](given[name]), expected[i, name])
        assert function.calls == calls, order
        assert product._x is None


@pytest.mark.parametrize("capture", ["off", "decode"])
def test_tokens_are_the_same(make_engine: Make, captured_runtime: switchrail.Runtime, capture: str) -> None:
    prompts = make_prompts()[:4]
    expected = tokens(make_engine(options=OPTIONS), prompts)
    platform = GraphPlatform()
    function: Any = Counted()
    platform.serving.register_oot_forward(Products.name, function)
    engine = make_engine(runtime=captured_runtime, device=platform, options={**OPTIONS, "capture": capture})
    function.calls = 0
    assert tokens(engine, prompts) == expected
    if capture == "off":
        layers = engine._runner.model.config.layer_types.count("full_attention")
        assert function.calls == layers * engine.stats.steps
