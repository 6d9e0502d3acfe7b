"""A module with a hook runs itself, instead of the platform's function, so that the hook is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import switchrail
from switchrail.engine import Engine
from switchrail.platforms.cpu import CpuPlatform
from switchrail.platforms.operations import Experts, GatedDeltaInputs
from torch import nn
from transformers.models.qwen3_next import modeling_qwen3_next as modelling

from tests.engine.test_gated_delta_net import inputs
from tests.engine.test_graphs import Make, make_prompts, tokens
from tests.platforms.test_engine import experts

PROMPTS = make_prompts()[:2]


class Served:
    """An engine whose platform has functions for two operations. `calls` has the names of those called."""

    def __init__(self, make_engine: Make) -> None:
        self.calls: set[str] = set()
        platform = CpuPlatform()
        for name, function in ((Experts.name, experts), (GatedDeltaInputs.name, inputs)):
            platform.serving.register_oot_forward(name, self._noting(name, function))
        self.engine: Engine = make_engine(device=platform)
        self.model: Any = self.engine._runner.model

    def _noting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            self.calls.add(name)
            return function(*args, **kwargs)

        return noted

    def run(self) -> tuple[list[tuple[int, ...]], set[str]]:
        self.calls.clear()
        return tokens(self.engine, PROMPTS, 3), set(self.calls)


@pytest.fixture
def served(make_engine: Make) -> Served:
    return Served(make_engine)


@pytest.mark.parametrize(
    ("target", "operation"),
    [
        (modelling.Qwen3NextTopKRouter, Experts),
        (modelling.Qwen3NextExperts, Experts),
        (modelling.Qwen3NextMLP, Experts),
        (nn.Linear, None),
    ],
)
def test_a_hook_on_a_class_is_called(target: type[nn.Module], operation: Any, served: Served) -> None:
    runtime = switchrail.Runtime()
    every = {Experts.name, GatedDeltaInputs.name}
    expected, calls = served.run()
    assert calls == every
    seen = []
    hook = runtime.hooks.add(
        f"{target.__module__}.{target.__name__}.forward", lambda *args, **kwargs: seen.append(1)
    )
    found, calls = served.run()
    assert found == expected
    assert seen
    assert calls == (set() if operation is None else every - {operation.name})
    runtime.hooks.remove(hook)
    assert served.run() == (expected, every)


@pytest.mark.parametrize("name", ["mlp.gate", "mlp.shared_expert.up_proj", "linear_attn.in_proj_ba"])
def test_a_hook_on_a_module_is_called(name: str, served: Served) -> None:
    expected, _ = served.run()
    found = [part for path, part in served.model.named_modules() if path.endswith(name)]
    seen = []
    handles = [part.register_forward_hook(lambda *args: seen.append(1)) for part in found]
    assert served.run()[0] == expected
    assert seen
    assert len(seen) % len(found) == 0
    for handle in handles:
        handle.remove()
    assert served.run() == (expected, {Experts.name, GatedDeltaInputs.name})


def test_a_hook_on_all_modules_is_called(served: Served) -> None:
    expected, _ = served.run()
    seen = set()
    with nn.modules.module.register_module_forward_hook(lambda part, *args: seen.add(type(part))):
        assert served.run() == (expected, set())
    assert {modelling.Qwen3NextTopKRouter, modelling.Qwen3NextExperts, nn.Linear} <= seen
