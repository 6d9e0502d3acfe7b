"""Pool sizes determined by a trial of the largest steps and graphs, on a CPU with simulated memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import switchrail
import torch
from switchrail import garbage
from switchrail.engine import Engine, SamplingParams, core
from switchrail.engine.drafts import Drafted
from switchrail.engine.memory import Pools
from switchrail.engine.sampling import choose
from switchrail.testing.graph import RecordedGraph

from tests.engine.heads import FULL, make_head
from tests.engine.test_graphs import (
    GraphHardware,
    GraphPlatform,
    GraphServing,
    captured_runtime,
    make_prompts,
    tokens,
)

assert captured_runtime

KIB = 2**10
TOTAL, WEIGHTS, STEP, FIRST, NEXT = 8192 * KIB, 4096 * KIB, 1024 * KIB, 512 * KIB, 8 * KIB
LIMIT = WEIGHTS + int(0.95 * (TOTAL - WEIGHTS))


class Memory:
    """The simulated memory of a device: weights, pools, graphs, and the most that one step took since the
    cache was last emptied."""

    def __init__(self) -> None:
        self.pools: list[weakref.ref[Pools]] = []
        self.graphs: list[weakref.ref[RecordedGraph]] = []
        self.steps = 0
        self.largest = 0

    @property
    def used(self) -> int:
        pools = sum(pool.nbytes for each in self.pools if (pool := each()) is not None)
        graphs = [each for each in self.graphs if each() is not None]
        return WEIGHTS + pools + self.steps + (FIRST + NEXT * (len(graphs) - 1) if graphs else 0)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    """One simulated memory for all engines of a test."""
    found = Memory()
    make = Pools.__init__

    def made(self: Pools, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        found.pools.append(weakref.ref(self))
        found.largest = max(found.largest, found.used)

    class Graph(RecordedGraph):
        @contextmanager
        def capture(self) -> Iterator[None]:
            found.graphs.append(weakref.ref(self))
            with super().capture():
                yield
            found.largest = max(found.largest, found.used)

    monkeypatch.setattr(Pools, "__init__", made)
    for name, value in {
        "total_memory": lambda self: TOTAL,
        "current_memory_usage": lambda self: found.used,
        "empty_cache": lambda self: setattr(found, "steps", 0),
        "keeps_freed_memory": lambda self: True,
    }.items():
        monkeypatch.setattr(GraphHardware, name, value)
    monkeypatch.setattr(GraphServing, "graph_class", lambda self: Graph)
    monkeypatch.setattr(GraphServing, "engine_defaults", lambda self: {})
    return found


Make = Callable[..., Engine]
OPTIONS = {"max_sequences": 8, "max_length": 1024, "page_size": 16, "max_tokens_per_step": 64}


@pytest.fixture
def platform(memory: Memory) -> GraphPlatform:
    """A platform on which the choice of tokens takes memory in proportion to the number of rows."""

    def choose_tokens(logits: torch.Tensor, params: Any, draws: Any) -> torch.Tensor:
        memory.steps = max(memory.steps, STEP * len(logits) // 8)
        memory.largest = max(memory.largest, memory.used)
        return choose(logits, params, draws)

    platform = GraphPlatform()
    platform.serving.register_oot_forward("choose_tokens", choose_tokens)
    return platform


@pytest.mark.parametrize("capture", ["off", "decode", "all"])
def test_pools_take_what_steps_and_graphs_leave(
    make_engine: Make,
    memory: Memory,
    platform: GraphPlatform,
    captured_runtime: switchrail.Runtime,
    capture: str,
) -> None:
    """The pools get as many pages as fit beside steps and graphs, and leave less than two pages unused."""
    options = {**OPTIONS, "capture": capture}
    engine = make_engine(runtime=captured_runtime, device=platform, options=options)
    assert 20 < engine.pools.pages.capacity < 8 * 64
    assert len(memory.pools) == 2
    assert memory.pools[0]() is None, "the trial's pools still exist"
    params = SamplingParams(max_new_tokens=3, ignore_eos=True, temperature=1.0, seed=1)
    engine.generate([[1, 2, 3]] * 8, params)
    assert memory.largest <= LIMIT
    page = engine.pools.nbytes // engine.pools.pages.capacity
    assert LIMIT - memory.used < 2 * page
    assert all(state.reason is None for state in engine.graphs)


@pytest.mark.parametrize("draft", ["ngram", "checkpoint", "mtp"])
def test_pools_leave_room_for_a_draft(
    make_engine: Make,
    memory: Memory,
    platform: GraphPlatform,
    captured_runtime: switchrail.Runtime,
    monkeypatch: pytest.MonkeyPatch,
    checkpoint: Path,
    tmp_path: Path,
    draft: str,
) -> None:
    """The engine's pools leave room for the draft's pools, and for verifications of drafts that were sampled
    and come with their probabilities."""
    seen = list[int]()
    verified = core.choose_rows

    def choose_rows(logits: torch.Tensor, widths: Any, drafted: Drafted, *given: Any) -> Any:
        seen.append(len(memory.pools))
        assert drafted.probabilities is not None
        memory.steps = max(memory.steps, STEP * len(logits) // 8)
        memory.largest = max(memory.largest, memory.used)
        return verified(logits, widths, drafted, *given)

    monkeypatch.setattr(core, "choose_rows", choose_rows)
    options = {
        **OPTIONS,
        "max_sequences": 4,
        "draft_tokens": 2,
        "draft": checkpoint if draft == "checkpoint" else draft,
    }
    path = make_head(checkpoint, tmp_path, [FULL] * 3) if draft == "mtp" else checkpoint
    engine = make_engine(path, runtime=captured_runtime, device=platform, options=options)
    made = {"ngram": 1, "checkpoint": 2, "mtp": 4}[draft]
    assert set(seen) == {made}, "verifications must run in the trial"
    assert len(memory.pools) == 2 * made
    if draft == "checkpoint":
        assert memory.pools[2]().pages.capacity == memory.pools[3]().pages.capacity  # type: ignore[union-attr]
    drafting = [pool() for pool in memory.pools[made:]]
    assert 1 < engine.pools.pages.capacity < 4 * 64
    page = sum(pool.nbytes // pool.pages.capacity for pool in drafting if pool is not None)
    room = LIMIT - memory.used - 3 * STEP // 2  # memory for verifying 4 sequences of 3 rows
    assert 0 <= room < 2 * page


def test_no_trial_with_plenty_of_memory(
    make_engine: Make,
    memory: Memory,
    platform: GraphPlatform,
    captured_runtime: switchrail.Runtime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An engine skips the trial if pools with all pages that its sequences can use take less than half of the
    memory that is free beside the weights."""
    monkeypatch.setattr(GraphHardware, "total_memory", lambda self: WEIGHTS + 20 * 2**20)
    engine = make_engine(runtime=captured_runtime, device=platform, options=OPTIONS)
    assert memory.steps == 0
    assert engine.pools.pages.capacity == 8 * 64


def test_the_trial_leaves_no_trace(
    make_engine: Make, platform: GraphPlatform, captured_runtime: switchrail.Runtime
) -> None:
    """After a trial, tokens are the same as in an engine without one, and the statistics don't count the
    trial's prompts."""
    prompts = make_prompts(2)
    engine = make_engine(runtime=captured_runtime, device=platform, options=OPTIONS)
    assert tokens(engine, prompts) == tokens(make_engine(options=OPTIONS), prompts)
    assert engine.stats.prefill_tokens == sum(map(len, prompts))


def test_a_trial_that_fails_is_a_warning(
    make_engine: Make,
    memory: Memory,
    captured_runtime: switchrail.Runtime,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If a trial fails, there is a warning, and the pools take a fraction of the memory."""

    def choose_tokens(logits: torch.Tensor, params: Any, draws: Any) -> torch.Tensor:
        if not failed:
            failed.append(True)
            raise RuntimeError("no sampling")
        return choose(logits, params, draws)

    failed: list[bool] = []
    platform = GraphPlatform()
    platform.serving.register_oot_forward("choose_tokens", choose_tokens)
    engine = make_engine(runtime=captured_runtime, device=platform, options={**OPTIONS, "capture": "off"})
    assert (
        "the trial run, which measures the memory of steps, failed: RuntimeError('no sampling')"
        in caplog.text
    )
    room = WEIGHTS + 0.85 * (TOTAL - WEIGHTS) - memory.used
    assert 0 <= room < 2 * engine.pools.nbytes // engine.pools.pages.capacity
    assert tokens(engine, make_prompts()[:2]) == tokens(make_engine(options=OPTIONS), make_prompts()[:2])


def test_requested_pages_need_no_trial(make_engine: Make, memory: Memory, platform: GraphPlatform) -> None:
    make_engine(device=platform, options={**OPTIONS, "num_pages": 9})
    assert len(memory.pools) == 1


def test_progress_of_captures(make_engine: Make, captured_runtime: switchrail.Runtime) -> None:
    told: list[tuple[int, int]] = []
    engine = make_engine(
        runtime=captured_runtime,
        device=GraphPlatform(),
        options=OPTIONS,
        progress=lambda done, total: told.append((done, total)),
    )
    count = len(engine.graphs)
    assert told == [(done, count) for done in range(count + 1)]


@pytest.mark.usefixtures("small_heap")
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_exception_in_progress_ends_the_creation_of_an_engine(
    make_engine: Make,
    memory: Memory,
    platform: GraphPlatform,
    captured_runtime: switchrail.Runtime,
    error: type[BaseException],
) -> None:
    """If `progress` raises an exception, no engine is created, and no memory or hook remains."""
    hooks = len(switchrail.hooks.chain.table().chains)

    def cancel(done: int, total: int) -> None:
        if done == 2:
            raise error

    with pytest.raises(error):
        make_engine(runtime=captured_runtime, device=platform, options=OPTIONS, progress=cancel)
    gc.collect()
    assert all(pools() is None for pools in memory.pools)
    assert all(graph() is None for graph in memory.graphs)
    assert len(switchrail.hooks.chain.table().chains) == hooks


@pytest.mark.usefixtures("whole_heap")
def test_the_collector_skips_objects_older_than_a_capturing_engine(
    make_engine: Make, captured_runtime: switchrail.Runtime
) -> None:
    """While an engine that captures is open, the garbage collector skips objects that existed before it."""
    before = gc.get_freeze_count()
    assert make_engine(options=OPTIONS)
    assert gc.get_freeze_count() == before
    engines = [
        make_engine(runtime=captured_runtime, device=GraphPlatform(), options=OPTIONS) for _ in range(2)
    ]
    frozen = gc.get_freeze_count()
    assert frozen > before + 10_000
    engines[0].close()
    engines[0].close()
    assert gc.get_freeze_count() > frozen // 2
    engines[1].close()
    assert gc.get_freeze_count() <= garbage.OF_PYTHON
