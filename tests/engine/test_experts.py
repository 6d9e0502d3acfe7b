"""Experts by a platform's function, in eager and captured steps."""

from __future__ import annotations

from typing import Any

import pytest
import switchrail
import torch
from switchrail.platforms.operations import Experts

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
    engine = make_engine(runtime=captured_runtime, device=platform, options=OPTIONS)
    assert told
    (rows,) = {id(rows): rows for rows in told}.values()  # one tensor for all graphs
    assert rows is not None
    told.clear()
    assert tokens(engine, prompts) == expected
    assert told
    assert not any(told), "no row of an eager step is padding"
    assert rows.tolist() == [1], "the last step is the longest prompt's alone"


def test_kernels_serve_as_the_function(
    make_engine: Make, captured_runtime: switchrail.Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    forward = pytest.importorskip("switchrail_kernels.experts.forward")
    prompts = [[5, 6, 7]]
    expected = tokens(make_engine(options=OPTIONS), prompts, 4)
    platform = GraphPlatform()
    monkeypatch.setattr(
        platform.serving, "graph_class", lambda: None
    )  # what is interpreted can't be captured
    platform.serving.register_oot_forward(Experts.name, forward.experts)
    engine = make_engine(runtime=captured_runtime, device=platform, options=OPTIONS)
    assert tokens(engine, prompts, 4) == expected
