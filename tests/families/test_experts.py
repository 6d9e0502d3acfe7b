"""The experts of families, run by a platform's function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import switchrail_kernels
import torch
from switchrail.engine import Engine, SamplingParams
from switchrail.platforms.cpu import CpuPlatform
from switchrail.platforms.operations import Experts, RoutedExperts
from switchrail.runtime import Runtime

from tests.families.conftest import OPTIONS, Family
from tests.platforms.test_engine import experts

FAMILIES = {
    "qwen3_5_moe_text": Experts,
    "kimi_linear": RoutedExperts,
    "bailing_hybrid": RoutedExperts,
    "bailing_moe_v2_5": RoutedExperts,
    "minimax": RoutedExperts,
    "granitemoehybrid": RoutedExperts,
    "lfm2_moe": RoutedExperts,
    "deepseek_v3": RoutedExperts,
}


def routed_experts(*tensors: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    x, ids, weights, gate_up, down = tensors
    gate, up = torch.einsum("th,tknh->tkn", x, gate_up[ids]).chunk(2, -1)
    each = torch.einsum("tkn,tkhn->tkh", torch.nn.functional.silu(gate) * up, down[ids])
    return (weights[:, :, None] * each).sum(1).type_as(x)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_platforms_function_runs_the_experts(model_type: str, family_of: Callable[[str], Family]) -> None:
    family, operation, calls = family_of(model_type), FAMILIES[model_type], 0

    def counted(*args: Any, **kwargs: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return {Experts: experts, RoutedExperts: routed_experts}[operation](*args, **kwargs)

    platform, runtime = CpuPlatform(), Runtime()
    platform.serving.register_oot_forward(operation.name, counted)
    with runtime.transaction() as registry:
        switchrail_kernels.register(registry)
    prompts = family.prompts((1, 21))
    expected = [tokens for tokens, _ in family.run(prompts, 6, backend="torch")]
    with Engine(
        family.path,
        runtime=runtime,
        device=platform,
        dtype="float32",
        backends=family.choices("torch"),
        options=OPTIONS,
    ) as engine:
        outputs = engine.generate(prompts, SamplingParams(max_new_tokens=6, ignore_eos=True))
        modules = sum(
            "gate_up_proj" in dict(part.named_parameters(recurse=False))
            for part in engine._runner.model.modules()
        )
        assert calls == modules * engine.stats.steps > 0
    assert [list(output.tokens) for output in outputs] == expected
