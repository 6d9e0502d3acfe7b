"""Backends with optional methods for captured decodes: `init_graph_state` and `graph_fill_value`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import switchrail
from switchrail.engine import Engine
from switchrail.ops import Bounds

from tests.engine.capturable import CAPTURABLE, CapturableAttention
from tests.engine.test_graphs import GraphPlatform, make_prompts, tokens

OPTIONS = {"max_sequences": 4, "max_length": 100, "page_size": 16, "capture": "decode", "num_pages": 60}


class Static(CapturableAttention):
    """A backend that allocates memory for its largest decode, and can't run a sequence without tokens."""

    instances: list[Static] = []  # noqa: RUF012

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.bounds: list[Bounds] = []
        self.instances.append(self)

    def init_graph_state(self, bounds: Bounds) -> None:
        self.bounds.append(bounds)

    def graph_fill_value(self) -> int:
        return 1

    def plan(self, phase: str, batch: Any, bounds: Any = None) -> object:
        assert self.bounds, "init_graph_state was not called"
        assert set(batch.kv_seqlens) == {1}
        return super().plan(phase, batch, bounds)


def register(runtime: switchrail.Runtime, attention: type[Any]) -> None:
    for op, backend in CAPTURABLE.items():
        own = attention if op == "attention" else backend
        steps = ("init_graph_state", "graph_fill_value") if op == "attention" else ()
        runtime.register("own", own, op=op, phases=("decode",), features=("cuda_graph", *steps), priority=-1)


def test_state_is_allocated_once_and_padding_has_its_length(make_engine: Callable[..., Engine]) -> None:
    prompts = make_prompts()[:3]
    expected = tokens(make_engine(options=OPTIONS), prompts)
    runtime = switchrail.Runtime()
    runtime.use_platform(GraphPlatform())
    register(runtime, Static)
    Static.instances.clear()
    engine = make_engine(runtime=runtime, device=GraphPlatform(), options=OPTIONS)
    for tensor in engine.pools.tensors():
        tensor.fill_(float("nan"))
    assert tokens(engine, prompts) == expected
    (backend,) = Static.instances
    assert backend.bounds == [Bounds(sequences=4, rows=4, tokens=100)]
    padded = [lengths for lengths in backend.refreshed if len(lengths) == 4]
    assert padded
    assert all(lengths[3] == 1 for lengths in padded)
