"""The engine with a registered backend that records its plans and calls."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import switchrail
import torch
from switchrail.engine import Engine, SamplingParams
from switchrail.ops.gated_delta.torch import TorchGatedDelta
from switchrail.times import device_of, times_path, write_machine

FREE = SamplingParams(max_new_tokens=5, ignore_eos=True)
PROMPTS = ["the beginning of it", "x", "and the end"]
LINEAR_LAYERS = (0, 2)


class Watched(TorchGatedDelta):
    """Records its plans and calls."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.plans: list[tuple[str, Any, object]] = []
        self.calls: list[tuple[str, Any, object]] = []

    def plan(self, phase: Any, batch: Any, bounds: Any = None) -> object:
        plan = super().plan(phase, batch, bounds)
        self.plans.append((phase, batch, plan))
        return plan

    def run(self, call: Any, batch: Any, plan: Any) -> Any:
        phase = next(phase for phase, planned, _ in reversed(self.plans) if planned is batch)
        self.calls.append((phase, batch, plan))
        return super().run(call, batch, plan)


@pytest.fixture
def runtime() -> switchrail.Runtime:
    runtime = switchrail.Runtime()
    runtime.register("watched", Watched, op="gated_delta")
    return runtime


def test_a_backend_plans_once_a_step_and_phase_and_runs_once_a_layer(
    runtime: switchrail.Runtime, make_engine: Callable[..., Engine]
) -> None:
    engine = make_engine(runtime=runtime, backends={"gated_delta": "watched"}, options={"prefill_chunk": 6})
    expected = make_engine(options={"prefill_chunk": 6}).generate(PROMPTS, FREE)
    assert engine.generate(PROMPTS, FREE) == expected
    watched = engine.bound.backend("gated_delta", "decode", 0)
    assert isinstance(watched, Watched)
    assert watched is engine.bound.backend("gated_delta", "prefill", 2)
    assert len(watched.plans) > engine.stats.steps  # some steps have both phases
    assert len(watched.calls) == len(watched.plans) * len(LINEAR_LAYERS)
    planned = {id(batch): (phase, plan) for phase, batch, plan in watched.plans}
    for phase, batch, plan in watched.calls:
        assert planned[id(batch)][0] == phase
        assert planned[id(batch)][1] is plan


def test_batches_keep_their_contract(runtime: switchrail.Runtime, make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(runtime=runtime, backends={"gated_delta": "watched"}, options={"prefill_chunk": 6})
    random.Random(1).shuffle(engine.pools.slots._free)
    engine.generate(PROMPTS, FREE)
    watched = engine.bound.backend("gated_delta", "decode", 0)
    seen = set()
    for phase, batch, _ in watched.plans:
        seen.add((phase, len(batch.seqlens)))
        lengths = torch.tensor(batch.seqlens)
        assert batch.cu_seqlens.dtype == torch.int32
        assert batch.cu_seqlens.tolist() == [0, *lengths.cumsum(0).tolist()]
        assert batch.read_slots.dtype == torch.int64
        assert batch.has_initial_state.dtype == torch.bool
        assert torch.equal(batch.read_slots, batch.write_slots)
        assert len(set(batch.read_slots.tolist())) == len(lengths)
        assert (batch.read_slots > 0).all()
        if phase == "decode":
            assert batch.read_slots.tolist() == sorted(batch.read_slots.tolist())
            assert batch.has_initial_state.all()
            assert (lengths == 1).all()
        else:
            assert (lengths <= 6).all()
    assert {"prefill", "decode"} == {phase for phase, _ in seen}
    assert ("decode", 3) in seen


@pytest.mark.parametrize(
    "backends",
    [
        {"gated_delta.prefill": "reference"},
        {"linear.decode": "reference", "attention.prefill": "reference"},
        {"short_conv": "reference", "gated_delta.decode": "watched", "gated_delta.prefill": "torch"},
    ],
    ids=str,
)
def test_phases_can_have_different_backends(
    backends: dict[str, str], runtime: switchrail.Runtime, make_engine: Callable[..., Engine]
) -> None:
    engine = make_engine(runtime=runtime, backends=backends)
    assert engine.generate(PROMPTS, FREE) == make_engine().generate(PROMPTS, FREE)
    if backends.get("gated_delta.decode") == "watched":
        watched = engine.bound.backend("gated_delta", "decode", 0)
        assert {phase for phase, _, _ in watched.calls} == {"decode"}
        assert len(watched.calls) == (engine.stats.steps - 1) * len(LINEAR_LAYERS)


def test_a_plan_keeps_withdrawn_backends(
    runtime: switchrail.Runtime, make_engine: Callable[..., Engine]
) -> None:
    engine = make_engine(runtime=runtime, backends={"gated_delta": "watched"})
    expected = engine.generate(PROMPTS, FREE)
    runtime.clear("gated_delta", "watched")
    assert engine.generate(PROMPTS, FREE) == expected


def test_each_step_runs_on_the_fastest_backend_for_similar_batches(
    runtime: switchrail.Runtime,
    make_engine: Callable[..., Engine],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SWITCHRAIL_TIMES", str(tmp_path / "times.json"))
    expected = make_engine(options={"prefill_chunk": 6}).generate(PROMPTS, FREE)
    known = {"op": "gated_delta", "dtype": "float32", "head_size": 16, "heads": [2, 4], "no_decay": False}

    def measurement(phase: str, few: dict[str, int], many: dict[str, int]) -> dict[str, Any]:
        samples = [(1, 1, few), (2, 1 if phase == "decode" else 2, many)]
        return {
            **known,
            "phase": phase,
            "samples": [{"rows": r, "length": n, "nanoseconds": times} for r, n, times in samples],
        }

    slow, fast = {"watched": 1000, "torch": 10}, {"watched": 10, "torch": 1000}
    found = {
        "device": device_of(runtime.find_platform("cpu")),
        "packages": {},
        "measurements": [measurement("decode", slow, fast), measurement("prefill", slow, fast)],
    }
    write_machine(times_path(), found, {})
    engine = make_engine(runtime=runtime, options={"prefill_chunk": 6})
    assert engine.generate(PROMPTS, FREE) == expected
    lone = engine.generate(PROMPTS[:1], FREE)
    assert lone == expected[:1]
    watched = engine.bound.at("decode", (1, 1)).backend("gated_delta", 0)
    assert isinstance(watched, Watched)
    assert not isinstance(engine.bound.at("decode", (1,)).backend("gated_delta", 0), Watched)
    batches = [(phase, len(batch.seqlens), sum(batch.seqlens)) for phase, batch, _ in watched.plans]
    assert {phase for phase, _, _ in batches} == {"prefill", "decode"}
    assert all(rows > 1 for _, _, rows in batches)  # single rows ran on the backend torch
    assert len(watched.calls) == len(watched.plans) * len(LINEAR_LAYERS)
