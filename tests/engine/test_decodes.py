"""Captured decodes, in which the device advances positions and chooses greedy tokens."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import switchrail
import torch
from switchrail import engine as package
from switchrail.engine import Engine, SamplingParams, sampling
from switchrail.engine.flight import Sent, Spare
from switchrail.engine.inputs import DecodeInputs, Tables, decode_rows
from switchrail.platforms.operations import ChooseTokens
from torch.overrides import TorchFunctionMode

from .places import Place, Visiting, name, recorded
from .test_graphs import OPTIONS, GraphPlatform, captured_runtime, make_prompts

__all__ = ["captured_runtime"]

Make = Callable[..., Engine]
FOLDER = Path(package.__file__).parent
FILES = [FOLDER / f"{name}.py" for name in ("decodes", "flight", "graphs", "inputs", "pieces", "core")]


class Transfers(TorchFunctionMode):
    """Counts copies into the tensor that describes the rows of captured decodes."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        graphs = engine._runner.graphs
        assert graphs is not None
        self._rows = graphs._decodes._inputs._rows
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.Tensor.copy_ and args[0] is self._rows
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="session")
def checkpoint(small_checkpoint: Path) -> Path:
    return small_checkpoint


@pytest.fixture
def engine(make_engine: Make, captured_runtime: switchrail.Runtime) -> Engine:
    return make_engine(runtime=captured_runtime, device=GraphPlatform(), options=OPTIONS)


def params(count: int = 12, **others: Any) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, ignore_eos=True, **others)


def test_rows_are_sent_only_when_the_sequences_change(make_engine: Make, engine: Engine) -> None:
    prompts = make_prompts()[:3]
    given = [params(12), params(7), params(12)]
    expected = [one.tokens for one in make_engine(options=OPTIONS).generate(prompts, given)]
    requests = [engine.submit(prompt, one) for prompt, one in zip(prompts, given, strict=True)]
    while not all(request.tokens for request in requests):
        engine.step()
    with Transfers(engine) as transfers:
        while engine.busy:
            engine.step()
    assert [tuple(request.tokens) for request in requests] == expected
    assert transfers.count == 3, "expected one each for three, two and one sequences"


def test_eager_steps_between_captured_ones_are_noticed(make_engine: Make, engine: Engine) -> None:
    """When a prompt arrives, the decoding sequences run in an eager step, without effect on tokens."""
    prompts = make_prompts()[:4]

    def run(engine: Engine) -> list[list[int]]:
        requests = [engine.submit(prompts[0], params(20))]
        for prompt in prompts[1:]:
            for _ in range(4):
                engine.step()
            requests.append(engine.submit(prompt, params(9)))
        while engine.busy:
            engine.step()
        return [request.tokens for request in requests]

    assert run(engine) == run(make_engine(options=OPTIONS))


@pytest.mark.usefixtures("small_heap")
def test_a_captured_decode_leaves_no_garbage(engine: Engine) -> None:
    """A step leaves no reference cycles; only the test's own backend keeps an object of each step."""
    requests = [engine.submit(prompt, params(40)) for prompt in make_prompts()[:3]]
    while not all(len(request.tokens) > 4 for request in requests):
        engine.step()
    kept, cycles = [], []
    for _ in range(3):
        gc.collect()
        gc.disable()
        try:
            count = len(gc.get_objects())
            for _ in range(10):
                engine.step()
            kept.append(len(gc.get_objects()) - count)
            cycles.append(gc.collect())
        finally:
            gc.enable()
    # Objects that a step leaves appear in each round; garbage of earlier tests appears in one round only.
    assert min(kept) <= 10, kept
    assert min(cycles) == 0, cycles


@pytest.mark.parametrize(("ahead", "files"), [(0, FILES[:-1]), (1, FILES)], ids=["at-once", "later"])
def test_later_decodes_are_right_after_an_interrupt(engine: Engine, ahead: int, files: list[Path]) -> None:
    """Tokens are right after an interrupt at any place of a captured decode, before, within or after the
    launch."""
    prompts = [[3, 1, 2], [9] * 11]
    expected = engine.generate(prompts, params(4))
    engine._core._ahead = ahead

    def run() -> None:
        engine.generate(prompts, params(4))

    places = [recorded(files, run) for _ in range(2)][1]
    assert {"fill", "launched", "replay", "_chosen", "read"} <= {place[0].co_name for place in places}
    wrong: list[str] = []
    for place in dict.fromkeys(places):
        interrupt(place, run)
        if engine.generate(prompts, params(4)) != expected:
            wrong.append(name(place))
    assert not wrong


def interrupt(place: Place, run: Callable[[], None]) -> None:
    def action() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Visiting(place, action):
        run()


def test_greedy_tokens_are_chosen_in_the_graph(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """`weigh` is called only for batches with a sampled row. Other batches replay the captured choice."""
    prompt = make_prompts()[2]
    expected = engine.generate([prompt], params())
    called: list[int] = []
    weigh = sampling.weigh

    def counted(logits: Any, given: Any) -> Any:
        called.append(len(logits))
        return weigh(logits, given)

    monkeypatch.setattr(sampling, "weigh", counted)
    launched = launches(engine, monkeypatch)
    assert engine.generate([prompt], params()) == expected
    assert (len(launched), called) == (11, [])
    engine.generate([prompt, prompt], [params(), params(temperature=1.0, seed=1)])
    assert (len(launched), len(called)) == (11, 12)


def launches(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    graphs = engine._runner.graphs
    assert graphs is not None
    found: list[int] = []
    chosen = graphs._decodes._chosen

    def counted(captured: Any, count: int) -> torch.Tensor:
        found.append(count)
        return chosen(captured, count)

    monkeypatch.setattr(graphs._decodes, "_chosen", counted)
    return found


def test_a_hooked_choice_is_called_in_each_step(
    engine: Engine, captured_runtime: switchrail.Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs don't contain a choice that has hooks, since a replay would not call them."""
    seen: list[int] = []
    hook = captured_runtime.hook("switchrail.engine.sampling.choose", lambda *_: seen.append(1), "before")
    launched = launches(engine, monkeypatch)
    engine.generate([[1, 2, 3]], params())
    assert (len(seen), launched) == (12, [])
    captured_runtime.hooks.remove(hook)
    engine.generate([[1, 2, 3]], params())
    assert (len(seen), len(launched)) == (12, 11)


def test_an_unmarked_platform_function_is_called_in_each_step(
    make_engine: Make, captured_runtime: switchrail.Runtime
) -> None:
    called: list[int] = []

    def choose(logits: torch.Tensor, given: Any, draws: Any) -> torch.Tensor:
        called.append(len(logits))
        return torch.full((len(logits),), 40 + len(called))

    platform = GraphPlatform()
    platform.serving.register_oot_forward(ChooseTokens.name, choose)
    engine = make_engine(runtime=captured_runtime, device=platform, options=OPTIONS)
    (output,) = engine.generate([[1, 2, 3]], params())
    assert output.tokens == tuple(range(41, 53))


def test_a_choice_without_finite_logits_feeds_token_0(engine: Engine) -> None:
    def broken(module: Any, args: Any, result: Any) -> Any:
        return result * float("nan")

    handle = engine._runner.model.lm_head.register_forward_hook(broken)  # type: ignore[union-attr]
    (output,) = engine.generate([[1, 2, 3]], params())
    assert output.finish_reason == "error"
    handle.remove()
    assert int(engine._runner.sequences.last_tokens.min()) >= 0


def test_memory_of_tokens_is_reused_after_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps in flight use separate memory for their tokens; reading a step twice gives the same
    tokens."""

    class Event:
        def __init__(self, device: Any) -> None:
            pass

        def record(self) -> None:
            pass

        def synchronize(self) -> None:
            pass

    empty = torch.empty
    made: list[int] = []

    def unpinned(shape: Any, *, pin_memory: bool, **kwargs: Any) -> torch.Tensor:
        assert pin_memory
        made.append(len(empty(shape)))
        return empty(shape, **kwargs)

    monkeypatch.setattr(torch, "Event", Event)
    monkeypatch.setattr(torch, "empty", unpinned)
    spare: Spare = {2: [], 3: []}
    flights = [Sent(torch.tensor([step, step]), spare) for step in range(2)]
    assert flights[0].read() == [0, 0]
    flights.append(Sent(torch.tensor([2, 2]), spare))
    assert [flight.read() for flight in flights] == [[0, 0], [1, 1], [2, 2]]
    assert Sent(torch.tensor([4, 5, 6]), spare).read() == [4, 5, 6]
    assert made == [2, 2, 3]


def test_derive_advances_rows_but_not_padding() -> None:
    tables = Tables(
        torch.arange(12, dtype=torch.int32).view(3, 4),
        torch.zeros(3, dtype=torch.int64),
        sequences=2,
        page_size=4,
        pin_memory=False,
    )
    made = DecodeInputs(tables, decode_rows)
    step = made.step(2, 16)
    made._rows[:2] = torch.tensor([[6, 3], [2, -1]])
    for position in (6, 7, 8):
        made.derive(step)
        assert step.position_ids.tolist() == [[position, 3]]
        assert step.kv_rows.tolist()[0] == (8 + position // 4) * 4 + position % 4
