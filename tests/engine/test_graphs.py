"""Captured decodes on a CPU, where a graph records torch's operations and calls them again.

A graph's key is the kind and the size of its step.
"""

from __future__ import annotations

import dataclasses
import gc
import random
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import switchrail
import torch
from switchrail.engine import Engine, SamplingParams
from switchrail.engine.keys import Key, lengths, mixed_rows, sizes
from switchrail.engine.watch import HookWatch
from switchrail.platforms.cpu import CpuHardware, CpuPlatform, CpuServing
from switchrail.testing.graph import RecordedGraph

from tests.engine.capturable import CAPTURABLE, PooledGraph
from tests.engine.conftest import Plain


@pytest.fixture(scope="session")
def checkpoint(small_checkpoint: Path) -> Path:
    return small_checkpoint


class GraphServing(CpuServing):
    def graph_class(self) -> Any:
        return RecordedGraph


class GraphHardware(CpuHardware):
    def support_cuda_graph(self) -> bool:
        return True

    def support_piecewise_cuda_graph(self) -> bool:
        return True


class GraphPlatform(CpuPlatform):
    hardware_class, serving_class = GraphHardware, GraphServing


@pytest.fixture
def captured_runtime() -> switchrail.Runtime:
    """A runtime with capturable backends for decode only, and a platform that has graphs."""
    runtime = switchrail.Runtime()
    runtime.use_platform(GraphPlatform())
    for op, backend in CAPTURABLE.items():
        runtime.register(
            "capturable", backend, op=op, phases=("decode",), features=("cuda_graph",), priority=-1
        )
    return runtime


Make = Callable[..., Engine]


@pytest.fixture
def capturing_engine(make_engine: Make, captured_runtime: switchrail.Runtime) -> Engine:
    """An engine that captures its decodes."""
    return make_engine(runtime=captured_runtime, device=GraphPlatform(), options=OPTIONS)


PROMPT_LENGTHS = (1, 3, 17, 40, 64, 65, 9)


def make_prompts(seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(256) for _ in range(length)] for length in PROMPT_LENGTHS]


def tokens(engine: Engine | Plain, prompts: list[list[int]], count: int = 12) -> list[tuple[int, ...]]:
    params = SamplingParams(max_new_tokens=count, ignore_eos=True)
    return [output.tokens for output in engine.generate(prompts, params)]


def count_replays(engine: Engine) -> list[Key]:
    """Returns a list to which the key of each replayed step is added from now on."""
    graphs = engine._runner.graphs
    assert graphs is not None
    seen: list[Key] = []
    for key, captured in graphs.captured.items():

        def replay(
            run: Callable[[Any], None],
            key: Key = key,
            replay: Callable[[Callable[[Any], None]], None] = captured.pieces.replay,
        ) -> None:
            seen.append(key)
            replay(run)

        captured.pieces.replay = replay  # type: ignore[method-assign]
    return seen


def decoded(keys: list[Key]) -> set[int]:
    """The number of rows of each captured decode among these keys."""
    return {key.rows for key in keys if key.kind == "decode"}


OPTIONS = {
    "max_sequences": 8,
    "max_length": 200,
    "page_size": 16,
    "prefill_chunk": 16,
    "max_tokens_per_step": 100,
}


def replay(engine: Engine, prompts: list[list[int]], expected: list[tuple[int, ...]]) -> list[Key]:
    """Compare tokens with expected ones. Also run requests that end one by one, and compare their tokens with
    those of longer requests.

    Returns:
        The keys that were replayed.
    """
    seen = count_replays(engine)
    assert tokens(engine, prompts) == expected
    assert decoded(seen) >= {1, 8}
    params = [SamplingParams(max_new_tokens=3 * n + 1, ignore_eos=True) for n in range(len(prompts))]
    found = [output.tokens for output in engine.generate(prompts, params)]
    assert found == [each[: len(one)] for one, each in zip(found, tokens(engine, prompts, 20), strict=True)]
    return seen


def test_tokens_of_captured_decodes_are_those_of_eager_ones(
    make_engine: Make, plain_engine: Any, captured_runtime: switchrail.Runtime
) -> None:
    """Captured decodes compute the tokens of eager ones, with padding, NaN in pools and several keys.

    Requests come and go, and have different lengths.
    """
    prompts = make_prompts()
    expected = tokens(plain_engine(OPTIONS), prompts)
    engine = make_engine(runtime=captured_runtime, device=GraphPlatform(), options=OPTIONS)
    for tensor in engine.pools.tensors():
        tensor.fill_(float("nan"))
    assert decoded(replay(engine, prompts, expected)) == {1, 2, 4, 8}


def test_a_change_of_hooks_is_captured_before_the_next_step(
    make_engine: Make, captured_runtime: switchrail.Runtime
) -> None:
    """After a hook is added or removed, the keys are captured again before they are used.

    The hooks are Switchrail's on a function and a method, and torch's on a module.
    """
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
    assert not seen, "an old graph was replayed after a change"


def test_sizes_and_lengths_of_keys() -> None:
    assert sizes(1) == (1,)
    assert sizes(6) == (1, 2, 4, 6)
    assert sizes(100) == (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 100)
    assert lengths(700) == (700,)
    assert lengths(8192) == (1024, 4096, 8192)
    assert mixed_rows(8) == (8,)
    assert mixed_rows(100) == (16, 24, 32, 48, 64, 96, 100)
    assert mixed_rows(8192)[-3:] == (1024, 1536, 2048)


def test_the_engine_lists_what_was_captured(make_engine: Make, captured_runtime: switchrail.Runtime) -> None:
    engine = make_engine(runtime=captured_runtime, device=GraphPlatform(), options=OPTIONS)
    names = {f"{op}.decode": "capturable" for op in CAPTURABLE}
    assert [(state.kind, state.rows, state.tokens, state.reason) for state in engine.graphs] == [
        *(("decode", size, 200, None) for size in (1, 2, 4, 8)),
        *(("mixed", rows, None, None) for rows in (16, 24, 32, 48, 64, 96, 100)),
    ]
    decodes = [state for state in engine.graphs if state.kind == "decode"]
    assert all((state.backends, state.eager) == (names, {}) for state in decodes)
    eager = {f"{op}.{phase}" for op in CAPTURABLE for phase in ("prefill", "decode")}
    assert all(set(state.eager) == set(state.backends) == eager for state in engine.graphs[4:])
    assert {name for state in engine.graphs[4:] for name in state.backends.values()} == {"torch"}
    assert decodes[0].because.keys() == names.keys()
    assert engine.graphs[0].name == "decodes of 1 sequence with caches of up to 200 tokens"
    assert engine.graphs[4].name == "steps of 16 rows with prompt tokens"
    off = make_engine(runtime=captured_runtime, device=GraphPlatform(), options={**OPTIONS, "capture": "off"})
    assert off.graphs == ()


def test_without_pieces_one_backend_without_graphs_makes_decodes_eager(
    make_engine: Make,
    captured_runtime: switchrail.Runtime,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(GraphHardware, "support_piecewise_cuda_graph", lambda self: False)
    engine = make_engine(runtime=captured_runtime, device=GraphPlatform(), options=OPTIONS)
    assert {state.kind for state in engine.graphs} == {"decode"}
    chosen = {"gated_delta.decode": "torch"}
    engine = make_engine(runtime=captured_runtime, device=GraphPlatform(), options=OPTIONS, backends=chosen)
    assert engine.graphs == ()
    assert "nothing is captured: platform cpu captures no pieces" in caplog.text
    assert "cuda_graph" in caplog.text
    prompts = make_prompts(2)[:3]
    assert tokens(engine, prompts) == tokens(make_engine(options=OPTIONS), prompts)


def test_a_platform_that_returns_no_graph_class_captures_nothing(
    make_engine: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GraphServing, "graph_class", lambda self: None)
    assert make_engine(device=GraphPlatform(), options=OPTIONS).graphs == ()
    assert "nothing is captured: platform cpu has no graphs" in caplog.messages


def test_a_failure_while_capturing_leaves_that_key_eager(
    make_engine: Make, captured_runtime: switchrail.Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key whose capture waits for the device or raises an error runs eagerly; other keys are captured."""
    run = CAPTURABLE["gated_delta"].run

    def waiting(self: Any, call: Any, batch: Any, plan: Any) -> None:
        if len(batch.seqlens) == 2:
            batch.read_slots[0].item()
        if len(batch.seqlens) == 4:
            raise ValueError("not four")
        run(self, call, batch, plan)

    monkeypatch.setattr(CAPTURABLE["gated_delta"], "run", waiting)
    engine = make_engine(runtime=captured_runtime, device=GraphPlatform(), options=OPTIONS)
    reasons = {state.rows: state.reason for state in engine.graphs if state.kind == "decode"}
    assert reasons[1] is reasons[8] is None
    assert "needs values on the host" in str(reasons[2])
    assert reasons[4] == "ValueError: not four"
    prompts = make_prompts(3)[:4]
    assert tokens(engine, prompts) == tokens(make_engine(options=OPTIONS), prompts)


def test_a_plan_that_cant_be_refreshed_ends_the_requests_of_its_step(
    make_engine: Make, captured_runtime: switchrail.Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(runtime=captured_runtime, device=GraphPlatform(), options=OPTIONS)
    prompts = make_prompts(4)[:2]
    expected = tokens(engine, prompts)

    def broken(self: Any, plan: Any, batch: Any) -> None:
        raise RuntimeError("no room in the plan")

    with monkeypatch.context() as patch:
        patch.setattr(CAPTURABLE["attention"], "refresh", broken)
        with pytest.raises(RuntimeError, match="no room") as caught:
            engine.generate(prompts)
    assert "backend capturable failed in refreshing its plan of attention decode" in caught.value.__notes__
    assert not engine.busy
    assert tokens(engine, prompts) == expected


def test_a_captured_decode_gets_the_same_tables_at_each_step(
    make_engine: Make, captured_runtime: switchrail.Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch keeps its tensors from step to step, updated in place, so backends check them only once."""
    seen: dict[str, list[Any]] = {op: [] for op in CAPTURABLE}
    for op, backend in CAPTURABLE.items():
        monkeypatch.setattr(backend, "refresh", lambda self, plan, batch, op=op: seen[op].append(batch))
    engine = make_engine(runtime=captured_runtime, device=GraphPlatform(), options=OPTIONS)
    tokens(engine, make_prompts(5)[:2])
    first, second, *others = seen["attention"]
    assert len(others) > 5
    assert all(batch is seen["gated_delta"][0] for batch in seen["gated_delta"])
    assert first.kv_seqlens[:2] == tuple(length - 1 for length in second.kv_seqlens[:2])
    for field in dataclasses.fields(first):
        same = all(getattr(batch, field.name) is getattr(first, field.name) for batch in others)
        assert same == (field.name != "kv_seqlens")


def test_a_row_that_becomes_nan_in_a_replay_ends_that_request_alone(capturing_engine: Engine) -> None:
    engine, prompts = capturing_engine, make_prompts(5)[:3]
    expected = tokens(engine, prompts)
    params = SamplingParams(max_new_tokens=12, ignore_eos=True)
    requests = [engine.submit(prompt, params) for prompt in prompts]
    while not all(request.tokens for request in requests):
        engine.step()
    for state in engine.pools.state.states.values():
        state[requests[1].slot] = float("nan")
    while engine.busy:
        engine.step()
    assert [request.finish_reason for request in requests] == ["length", "error", "length"]
    assert "not finite" in str(requests[1].error)
    assert [tuple(requests[i].tokens) for i in (0, 2)] == [expected[i] for i in (0, 2)]
    assert tokens(engine, prompts) == expected


def test_two_engines_in_turn(make_engine: Make, captured_runtime: switchrail.Runtime) -> None:
    engines = [
        make_engine(runtime=captured_runtime, device=GraphPlatform(), options=OPTIONS) for _ in range(2)
    ]
    prompts = make_prompts(6)[:4]
    expected = tokens(make_engine(options=OPTIONS), prompts)
    params = SamplingParams(max_new_tokens=12, ignore_eos=True)
    requests = [[engine.submit(prompt, params) for prompt in prompts] for engine in engines]
    while any(engine.busy for engine in engines):
        for engine in engines:
            engine.step()
    for each in requests:
        assert [tuple(request.tokens) for request in each] == expected


@pytest.mark.usefixtures("small_heap")
def test_a_closed_engine_frees_its_graphs_without_the_collector(
    make_engine: Make, captured_runtime: switchrail.Runtime
) -> None:
    engine = make_engine(runtime=captured_runtime, device=GraphPlatform(), options=OPTIONS)
    tokens(engine, make_prompts()[:2])
    held = [weakref.ref(tensor) for tensor in engine.pools.tensors()]
    held += [weakref.ref(weight) for weight in engine._runner.model.parameters()]
    gc.collect()
    gc.disable()
    try:
        engine.close()
        assert all(tensor() is None for tensor in held)
    finally:
        gc.enable()


def test_each_key_has_the_backends_for_caches_of_its_length(
    make_engine: Make, captured_runtime: switchrail.Runtime
) -> None:
    """A key is captured with the backends for caches of its maximum length, not of its padding's length."""
    engine = make_engine(runtime=captured_runtime, device=GraphPlatform(), options=OPTIONS)
    graphs = engine._runner.graphs
    assert graphs is not None
    bound, asked = graphs._decodes._bound, []

    class Asked:
        def at(self, phase: str, seqlens: tuple[int, ...], kv_seqlens: tuple[int, ...]) -> Any:
            asked.append(Key("decode", len(seqlens), max(kv_seqlens)))
            return bound.at(phase, seqlens, kv_seqlens)

    graphs._decodes._bound = Asked()  # type: ignore[assignment]
    graphs.capture(graphs.in_order)
    assert asked == [key for key in graphs.keys if key.kind == "decode"][::-1]


def test_graphs_captured_again_reuse_the_memory_of_replaced_graphs(
    make_engine: Make, captured_runtime: switchrail.Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Capturing again reuses the memory of the graphs that are replaced, instead of allocating more."""
    make, shared = RecordedGraph.__init__, []

    def sharing(self: RecordedGraph, shares: RecordedGraph | None = None) -> None:
        make(self, shares)
        shared.append(shares is not None)

    monkeypatch.setattr(RecordedGraph, "__init__", sharing)
    engine = make_engine(runtime=captured_runtime, device=GraphPlatform(), options=OPTIONS)
    keys = len(engine.graphs)
    engine._runner.model.model.norm.register_forward_hook(lambda *_: None)
    tokens(engine, make_prompts(1)[:3])
    assert len(shared) > keys
    assert shared == [False] + [True] * (len(shared) - 1)


@pytest.mark.parametrize("look", [False, True])
def test_an_interrupted_search_for_hooks_loses_no_hook(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch, look: bool
) -> None:
    model = make_engine(options=OPTIONS)._runner.model
    watch = HookWatch(model)

    def interrupted() -> Any:
        raise KeyboardInterrupt

    handle = model.model.norm.register_forward_hook(lambda *_: None)
    with monkeypatch.context() as patch:
        patch.setattr(watch, "_find", interrupted)
        with pytest.raises(KeyboardInterrupt):
            watch.look() if look else watch.has_changed()
    assert watch.has_changed()
    watch.look()
    handle.remove()
    assert watch.has_changed()


def test_creating_or_closing_another_engine_keeps_graphs(make_engine: Make, capturing_engine: Engine) -> None:
    engine, prompts = capturing_engine, make_prompts(1)[:2]
    expected = tokens(engine, prompts)
    seen = count_replays(engine)
    other = make_engine(options=OPTIONS)
    assert tokens(engine, prompts) == expected
    replays = len(seen)
    assert replays > 0
    other.close()
    assert tokens(engine, prompts) == expected
    assert len(seen) == 2 * replays


@pytest.mark.parametrize("ended", [True, False])
def test_the_memory_of_a_failed_capture_is_shared_if_it_could_be_ended(
    make_engine: Make, captured_runtime: switchrail.Runtime, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """A failed capture shares its memory with the next one if the graph could still leave capturing mode.

    A graph is kept until another graph has taken over its memory.
    """
    shared: list[bool] = []
    run = CAPTURABLE["gated_delta"].run

    class Shared(PooledGraph):
        @contextmanager
        def capture(self) -> Iterator[None]:
            shared.append(self.owner is not None)
            try:
                with super().capture():
                    yield
            except ValueError:
                if not ended:
                    raise RuntimeError("capturing can't be ended") from None
                raise

    def failing(self: Any, call: Any, batch: Any, plan: Any) -> None:
        if len(batch.seqlens) == 4 and len(shared) > 2:
            raise ValueError("not four")
        run(self, call, batch, plan)

    monkeypatch.setattr(CAPTURABLE["gated_delta"], "run", failing)
    monkeypatch.setattr(GraphServing, "graph_class", lambda self: Shared)
    options = {**OPTIONS, "capture": "decode"}
    engine = make_engine(runtime=captured_runtime, device=GraphPlatform(), options=options)
    assert [state.rows for state in engine.graphs if state.reason] == [4]
    # each key has two graphs, but the key of 4 rows fails in its first
    assert shared == [False, True, True, ended, True, True, True]
    graphs = engine._runner.graphs
    assert graphs is not None
    graphs._drop()
    graphs.capture(graphs.in_order)
    assert shared[7:] == [True] * 6


def test_a_replay_repeats_operations_without_results():
    """An operation without results may raise, or write to an argument that is not written by its schema."""
    graph, is_valid = RecordedGraph(), torch.ones(())
    with graph.capture():
        torch._assert_async(is_valid)
    graph.replay()
    is_valid.zero_()
    with pytest.raises(RuntimeError, match="got zero"):
        graph.replay()
