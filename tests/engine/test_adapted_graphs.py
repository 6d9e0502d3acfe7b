"""Captured decodes of backends that wrap themselves in an `Adapter`."""

from __future__ import annotations

from typing import Any

import pytest
import switchrail
from switchrail.ops.adapter import Adapter

from tests.engine.capturable import CAPTURABLE
from tests.engine.test_graphs import OPTIONS, GraphPlatform, Make, make_prompts, replay, tokens


def adapted_of(op: str) -> type[Adapter]:
    """A backend that is adapted by its vendor, not by a dispatcher."""

    class Adapted(Adapter):
        def __init__(self, config: Any = None) -> None:
            super().__init__(CAPTURABLE[op](), ())

    Adapted.op = op
    return Adapted


@pytest.mark.parametrize("op", CAPTURABLE)
def test_tables_that_a_graph_writes_reach_an_adapted_backend(
    make_engine: Make, plain_engine: Any, op: str
) -> None:
    """Since graphs write page tables and cache lengths after `refresh`, adapters copy them again in `run`."""
    prompts = make_prompts()
    expected = tokens(plain_engine(OPTIONS), prompts)
    runtime = switchrail.Runtime()
    runtime.use_platform(GraphPlatform())
    for each, backend in CAPTURABLE.items():
        runtime.register(
            "capturable",
            adapted_of(op) if each == op else backend,
            op=each,
            phases=("decode",),
            features=("cuda_graph",),
            priority=1,
        )
    engine = make_engine(runtime=runtime, device=GraphPlatform(), options=OPTIONS)
    replay(engine, prompts, expected)
