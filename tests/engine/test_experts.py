"""Experts that a platform's function runs, in eager and captured steps."""

from __future__ import annotations

from typing import Any

import pytest
import switchrail
import torch
from switchrail.engine.models.sparse_block import SPARSE_BLOCK
from switchrail.platforms.operations import Experts
from torch.nn.functional import linear
from transformers import Qwen3NextConfig
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextSparseMoeBlock

from tests.engine.test_graphs import OPTIONS, GraphPlatform, Make, captured_runtime, make_prompts, tokens
from tests.platforms.test_engine import experts

__all__ = ["captured_runtime"]


def test_captured_steps_say_which_rows_are_padding(
    make_engine: Make, captured_runtime: switchrail.Runtime
) -> None:
    told: list[torch.Tensor | None] = []

    def noted(*args: Any, rows: torch.Tensor | None, **kwargs: Any) -> torch.Tensor:
        told.append(rows)
        return experts(*args, rows=rows, **kwargs)

    prompts = make_prompts()[:3]
    expected = tokens(make_engine(options=OPTIONS), prompts)
    platform = GraphPlatform()
    platform.serving.register_oot_forward(Experts.name, noted)
    options = {**OPTIONS, "capture": "decode"}
    engine = make_engine(runtime=captured_runtime, device=platform, options=options)
    assert told
    (rows,) = {id(rows): rows for rows in told}.values()  # all graphs share one tensor
    assert rows is not None
    told.clear()
    assert tokens(engine, prompts) == expected
    assert told
    assert not any(told), "an eager step has no padding, so `rows` must be None"
    assert rows.tolist() == [1], "the last step must have one row"


def test_the_kernels_compute_the_same_tokens(
    make_engine: Make, captured_runtime: switchrail.Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    forward = pytest.importorskip("switchrail_kernels.experts.forward")
    prompts = [[5, 6, 7]]
    expected = tokens(make_engine(options=OPTIONS), prompts, 4)
    platform = GraphPlatform()
    # interpreted kernels can't be captured
    monkeypatch.setattr(platform.serving, "graph_class", lambda: None)
    platform.serving.register_oot_forward(Experts.name, forward.experts)
    engine = make_engine(runtime=captured_runtime, device=platform, options=OPTIONS)
    assert tokens(engine, prompts, 4) == expected


@torch.inference_mode()
def test_a_shared_expert_of_equal_size_is_appended() -> None:
    """A shared expert of the same size as the others is appended to them.

    The weights of all experts, and the router's, become views of stacked weights. Results stay the same.
    """
    config = Qwen3NextConfig(
        hidden_size=32,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    )
    config._experts_implementation = "eager"
    torch.manual_seed(1)
    block = Qwen3NextSparseMoeBlock(config).eval()
    for weight in block.parameters():
        weight.normal_(std=0.3)
    x = torch.randn(1, 7, 32)
    expected, before = block(x), {name: weight.clone() for name, weight in block.named_parameters()}
    stacked = SPARSE_BLOCK.prepare(experts, block)
    assert [len(weights) for weights in stacked] == [8, 7, 7]
    assert not stacked.router[7:].any()
    assert {weight.untyped_storage().data_ptr() for weight in block.parameters()} == {
        weights.untyped_storage().data_ptr() for weights in stacked
    }
    torch.testing.assert_close(dict(block.named_parameters()), before, rtol=0, atol=0)
    torch.testing.assert_close(block(x), expected, rtol=0, atol=0)

    told = []
    assert SPARSE_BLOCK.call is not None

    def noted(*args: Any, shared: int, **kwargs: Any) -> torch.Tensor:
        told.append(shared)
        return experts(*args, shared=shared, rows=None, **kwargs)

    torch.testing.assert_close(SPARSE_BLOCK.call(noted, block, x, multiply=linear), expected)
    block.__dict__["_switchrail_prepared"] = stacked
    torch.testing.assert_close(SPARSE_BLOCK.call(noted, block, x, multiply=linear), expected)
    assert told == [0, 1]


def test_a_shared_expert_of_another_size_stays_separate() -> None:
    config = Qwen3NextConfig(
        hidden_size=32, num_experts=6, moe_intermediate_size=16, shared_expert_intermediate_size=48
    )
    assert SPARSE_BLOCK.prepare(experts, Qwen3NextSparseMoeBlock(config)) is None
