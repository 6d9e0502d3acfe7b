"""Gated delta layers that compute all inputs in one product."""

from __future__ import annotations

from typing import Any

import pytest
import switchrail
import torch
from switchrail.engine.models.gated_delta_net import GATED_DELTA_NET
from switchrail.platforms.operations import GatedDeltaInputs
from torch.nn.functional import linear, softplus
from transformers import Qwen3NextConfig
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from tests.engine.conftest import CONFIG
from tests.engine.test_graphs import OPTIONS, GraphPlatform, Make, captured_runtime, make_prompts, tokens

__all__ = ["captured_runtime"]


def inputs(
    x: torch.Tensor, weight: torch.Tensor, A_log: torch.Tensor, dt_bias: torch.Tensor, *, channels: int
) -> tuple[torch.Tensor, ...]:
    heads = len(A_log)
    product = linear(x, weight)
    qkv, z, b, a = torch.split(product, [channels, len(weight) - channels - 2 * heads, heads, heads], -1)
    return qkv, z, -A_log.float().exp() * softplus(a.float() + dt_bias), b.sigmoid()


@torch.inference_mode()
def test_a_prepared_module_computes_as_before_and_holds_its_weights_once() -> None:
    torch.manual_seed(0)
    net = Qwen3NextGatedDeltaNet(Qwen3NextConfig(**CONFIG), 0).eval()
    x = torch.randn(1, 9, CONFIG["hidden_size"])
    expected = net(x)
    shapes = {name: weight.shape for name, weight in net.named_parameters()}
    weight = GATED_DELTA_NET.prepare(inputs, net)
    assert {name: weight.shape for name, weight in net.named_parameters()} == shapes
    assert len(weight) == len(net.in_proj_qkvz.weight) + len(net.in_proj_ba.weight)
    for part in (net.in_proj_qkvz, net.in_proj_ba):
        assert part.weight.untyped_storage().data_ptr() == weight.untyped_storage().data_ptr()
    torch.testing.assert_close(net(x), expected)
    assert not any(part is net for part in net.fix_query_key_value_ordering.args)
    net.__dict__["_switchrail_prepared"] = weight
    assert GATED_DELTA_NET.call is not None
    torch.testing.assert_close(GATED_DELTA_NET.call(inputs, net, x, multiply=linear), expected)


@pytest.mark.parametrize("capture", ["off", "decode"])
def test_tokens_are_the_same(make_engine: Make, captured_runtime: switchrail.Runtime, capture: str) -> None:
    calls = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return inputs(*args, **kwargs)

    prompts = make_prompts()[:4]
    expected = tokens(make_engine(options=OPTIONS), prompts)
    platform = GraphPlatform()
    platform.serving.register_oot_forward(GatedDeltaInputs.name, counted)
    options = {**OPTIONS, "capture": capture}
    engine = make_engine(runtime=captured_runtime, device=platform, options=options)
    assert tokens(engine, prompts) == expected
    assert calls


def test_the_kernels_compute_the_same_tokens(make_engine: Make, captured_runtime: switchrail.Runtime) -> None:
    pytest.importorskip("triton")
    module = pytest.importorskip("switchrail_kernels.gated_delta.inputs")
    prompts = [[5, 6, 7]]
    expected = tokens(make_engine(options=OPTIONS), prompts, 4)
    platform = GraphPlatform()
    platform.serving.register_oot_forward(GatedDeltaInputs.name, module.gated_delta_inputs)
    options = {**OPTIONS, "capture": "off"}  # interpreted kernels can't be captured
    engine = make_engine(runtime=captured_runtime, device=platform, options=options)
    assert tokens(engine, prompts, 4) == expected
