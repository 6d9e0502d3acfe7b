"""The residual sums of decoder layers, fused with the norm that follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import switchrail
from switchrail.engine.compiled.functions import FUNCTIONS
from switchrail.platforms import CpuPlatform
from switchrail.platforms.operations import AddRMSNorm, RMSNorm
from transformers.models.qwen3_next import modeling_qwen3_next as modelling

from tests.engine.test_graphs import Make, make_prompts, tokens

PROMPTS = make_prompts()[:2]
CLASS = f"{modelling.__name__}.Qwen3NextDecoderLayer.forward"
NORM = f"{modelling.__name__}.Qwen3NextRMSNorm.forward"


@pytest.fixture
def calls() -> Counter[str]:
    return Counter()


@pytest.fixture
def platform(calls: Counter[str]) -> CpuPlatform:
    """A platform with functions for `RMSNorm` and `AddRMSNorm`, which count their calls."""

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return function(*args, **kwargs)

        return counted

    made = CpuPlatform()
    for operation in (RMSNorm, AddRMSNorm):
        made.serving.register_oot_forward(operation.name, counting(operation.name, FUNCTIONS[operation]))
    return made


def test_a_sum_is_normalised_once(make_engine: Make, platform: CpuPlatform, calls: Counter[str]) -> None:
    expected = tokens(make_engine(), PROMPTS, 3)
    engine = make_engine(device=platform)
    model: Any = engine._runner.model.model
    seen = []
    model.embed_tokens.register_forward_hook(lambda *_: seen.append(1))
    assert tokens(engine, PROMPTS, 3) == expected
    heads = 2 * sum(hasattr(layer, "self_attn") for layer in model.layers)
    assert calls == {
        AddRMSNorm.name: 2 * len(model.layers) * len(seen),
        RMSNorm.name: (1 + heads) * len(seen),
    }
    assert not any("_switchrail_normal" in part.__dict__ for part in model.modules())


def change(*args: Any) -> None:
    """A hook that modifies its module's result in place."""
    args[-1].mul_(1.5).add_(args[-1].flip(-1))


def change_first(*args: Any) -> None:
    """A hook that modifies its module's argument in place."""
    change(args[1][0])


HOOKS: dict[str, Callable[[Any], Any]] = {
    "layer's result": lambda model: model.layers[0].register_forward_hook(change),
    "last layer's result": lambda model: model.layers[-1].register_forward_hook(change),
    "next layer's input": lambda model: model.layers[1].register_forward_pre_hook(change_first),
    "norm's input": lambda model: model.layers[1].input_layernorm.register_forward_pre_hook(change_first),
    "last norm's input": lambda model: model.norm.register_forward_pre_hook(change_first),
    "norm's result": lambda model: model.layers[1].input_layernorm.register_forward_hook(change),
}


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_around_the_sum_take_effect(name: str, make_engine: Make, platform: CpuPlatform) -> None:
    found = []
    for device in ("cpu", platform):
        engine = make_engine(device=device)
        plain = tokens(engine, PROMPTS, 4)
        handle = HOOKS[name](engine._runner.model.model)
        found.append(tokens(engine, PROMPTS, 4))
        assert found[-1] != plain
        handle.remove()
        assert tokens(engine, PROMPTS, 4) == plain
    assert found[0] == found[1]


@pytest.mark.parametrize("target", [CLASS, NORM])
def test_hooks_on_classes_around_the_sum_take_effect(
    target: str, make_engine: Make, platform: CpuPlatform
) -> None:
    runtime = switchrail.Runtime()
    found = []
    for device in ("cpu", platform):
        engine = make_engine(device=device)
        plain = tokens(engine, PROMPTS, 4)
        hook = runtime.hooks.add(target, lambda module, *args, **kwargs: change(args[0]))
        found.append(tokens(engine, PROMPTS, 4))
        assert found[-1] != plain
        runtime.hooks.remove(hook)
        assert tokens(engine, PROMPTS, 4) == plain
    assert found[0] == found[1]
