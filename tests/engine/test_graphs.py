"""Captured decodes, on a CPU: torch's operations are written down and called again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import switchrail
from switchrail.engine import Engine, SamplingParams
from switchrail.engine.graphs import Key
from switchrail.platforms.cpu import CpuPlatform, CpuServing
from switchrail.testing.graph import RecordedGraph

from tests.engine.capturable import CAPTURABLE


class GraphServing(CpuServing):
    def graph_class(self) -> Any:
        return RecordedGraph


class GraphPlatform(CpuPlatform):
    serving_class = GraphServing


@pytest.fixture
def captured_runtime() -> switchrail.Runtime:
    """Backends that can be captured, for decode alone, and a platform that captures."""
    runtime = switchrail.Runtime()
    runtime.use_platform(GraphPlatform())
    for op, backend in CAPTURABLE.items():
        runtime.register(
            "capturable", backend, op=op, phases=("decode",), features=("cuda_graph",), priority=-1
        )
    return runtime


Make = Callable[..., Engine]
PROMPT_LENGTHS = (1, 3, 17, 40, 64, 65, 9)


def make_prompts(seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(256) for _ in range(length)] for length in PROMPT_LENGTHS]


def tokens(engine: Engine, prompts: list[list[int]], count: int = 12) -> list[tuple[int, ...]]:
    params = SamplingParams(max_new_tokens=count, ignore_eos=True)
    return [output.tokens for output in engine.generate(prompts, params)]


def count_replays(engine: Engine) -> list[Key]:
    """The keys that are replayed from now on."""
    graphs = engine._runner.graphs
    assert graphs is not None
    seen: list[Key] = []
    for key, captured in graphs.captured.items():

        def replay(key: Key = key, replay: Callable[[], None] = captured.graph.replay) -> None:
            seen.append(key)
            replay()

        captured.graph.replay = replay  # type: ignore[method-assign]
    return seen


OPTIONS = {"max_sequences": 8, "max_length": 200, "page_size": 16, "prefill_chunk": 16}


def test_tokens_of_captured_decodes_are_those_of_eager_ones(
    make_engine: Make, captured_runtime: switchrail.Runtime
) -> None:
    """Ragged, with padding, poisoned pools, requests that come and go, and more than one bucket."""
    prompts = make_prompts()
    expected = tokens(make_engine(options=OPTIONS), prompts)
    engine = make_engine(runtime=captured_runtime, device=GraphPlatform(), options=OPTIONS)
    for tensor in engine.pools.tensors():
        tensor.fill_(float("nan"))
    seen = count_replays(engine)
    assert tokens(engine, prompts) == expected
    assert {key.sequences for key in seen} >= {1, 8}
    params = [SamplingParams(max_new_tokens=3 * n + 1, ignore_eos=True) for n in range(len(prompts))]
    found = [output.tokens for output in engine.generate(prompts, params)]
    assert found == [each[: len(one)] for one, each in zip(found, tokens(engine, prompts, 20), strict=True)]
    assert {key.sequences for key in seen} == {1, 2, 4, 8}


def test_a_change_of_hooks_is_captured_before_the_next_step(
    make_engine: Make, captured_runtime: switchrail.Runtime
) -> None:
    """Switchrail's on a function and a method, torch's on a module: added and removed after the capture."""
    prompts = make_prompts(1)[:3]
    runtime = captured_runtime
    engine = make_engine(runtime=runtime, device=GraphPlatform(), options=OPTIONS)
    plain = tokens(engine, prompts)
    model = engine._runner.model

    def louder(result: Any, *args: Any, **kwargs: Any) -> Any:
        return result * -1.5

    def delta(result: Any, *args: Any, **kwargs: Any) -> Any:
        return result[0] * -1.5, None

    seen = count_replays(engine)
    module = "transformers.models.qwen3_next.modeling_qwen3_next"
    for name, fn in (("torch_chunk_gated_delta_rule", delta), ("Qwen3NextRMSNorm.forward", louder)):
        hook = runtime.hook(f"{module}.{name}", fn, "after")
        changed = tokens(engine, prompts)
        assert changed != plain
        assert changed == tokens(engine, prompts)
        runtime.hooks.remove(hook)
        assert tokens(engine, prompts) == plain
    handle = model.model.norm.register_forward_hook(lambda module, args, result: result * -1)
    assert tokens(engine, prompts) != plain
    handle.remove()
    assert tokens(engine, prompts) == plain
    assert not seen, "no graph of before was replayed after a change"
