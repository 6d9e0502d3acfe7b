"""A small CPU run of the soak test with injected failures. Graphs replay recorded torch operations."""

from __future__ import annotations

import pytest
import switchrail
import torch
from switchrail.engine import Engine
from switchrail.ops.gated_delta.torch import TorchGatedDelta
from switchrail.testing import isolated

from benchmarks import soak
from tests.engine.capturable import CAPTURABLE
from tests.engine.test_graphs import GraphPlatform

OPTIONS = {"max_sequences": 6, "max_length": 96, "max_tokens_per_step": 64, "page_size": 16}


@pytest.fixture
def faults():
    return soak.Faults(poison=torch.zeros(1))


@pytest.fixture
def engine(faults):
    with isolated():
        runtime = switchrail.Runtime()
        platform = GraphPlatform()
        runtime.use_platform(platform)
        for op, backend in CAPTURABLE.items():
            failing = soak.faulty(backend, faults) if op == "gated_delta" else backend
            runtime.register("capturable", failing, op=op, phases=("decode",), features=("cuda_graph",))
        runtime.register(
            "faulty", soak.faulty(TorchGatedDelta, faults), op="gated_delta", phases=("prefill",), priority=1
        )
        with Engine(soak.CHECKPOINT, runtime=runtime, device=platform, options=OPTIONS) as engine:
            yield engine


def run(engine, faults, requests=60):
    return soak.soak(engine, faults, requests=requests, prompts=12, longest=60, new_tokens=8)


def test_a_correct_engine_passes(engine, faults, monkeypatch):
    monkeypatch.setattr(soak, "EVERY", 3)
    monkeypatch.setattr(soak, "warm_up", lambda engine: ())
    report = run(engine, faults)
    assert report.wrong == []
    assert report.ends.total() == 60
    assert set(report.ends) == {"length", "error", "cancelled"}
    assert set(report.faults) == set(soak.KINDS)


def test_failures_are_found(engine, faults, monkeypatch):
    """The soak test reports a wrong token, a lost page, and a request that fails without an injected
    failure."""
    monkeypatch.setattr(soak, "EVERY", 1000)
    choose, steps = engine._core._choose, []

    def begin(engine):
        steps.append(0)
        return ()

    def choose_wrongly(logits, params, draws):
        tokens = choose(logits, params, draws)
        if steps:
            steps[0] += 1
            if steps[0] == 5:
                tokens[0] += 1
            elif steps[0] == 9:
                tokens[0] = -1
                engine.pools.pages.take(1)
        return tokens

    monkeypatch.setattr(soak, "warm_up", begin)
    monkeypatch.setattr(engine._core, "_choose", choose_wrongly)
    wrong = run(engine, faults, requests=20).wrong
    assert any("differs from" in line for line in wrong)
    assert any("failed without an injected failure" in line for line in wrong)
    assert any(line.startswith("at the end, only") for line in wrong)
