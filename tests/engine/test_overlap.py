"""Steps that are launched before the tokens of the previous step are read, as on an asynchronous device."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from switchrail.engine import Engine, Event, SamplingParams, runner
from torch import Tensor
from torch.overrides import TorchFunctionMode

Make = Callable[..., Engine]
OPTIONS = {"max_sequences": 6, "max_tokens_per_step": 24, "page_size": 4, "num_pages": 90, "max_length": 64}


@pytest.fixture(scope="session")
def checkpoint(small_checkpoint: Path) -> Path:
    return small_checkpoint


def make_params(count: int) -> list[SamplingParams]:
    """Parameters of requests that end by length, token or text. Some are sampled, or have several samples."""
    draw = random.Random(4)
    return [
        SamplingParams(
            max_new_tokens=draw.randint(1, 12),
            ignore_eos=bool(number % 2),
            stop=("e",) if number % 3 == 0 else (),
            stop_token_ids=(draw.randrange(256),) if number % 4 == 0 else (),
            temperature=0.0 if number % 2 else 1.5,
            top_p=0.9,
            seed=number,
            n=2 if number % 5 == 4 else 1,
        )
        for number in range(count)
    ]


def make_prompts(count: int) -> list[list[int]]:
    draw = random.Random(7)
    return [[draw.randrange(256) for _ in range(draw.randint(1, 40))] for _ in range(count)]


@pytest.fixture
def engine(make_engine: Make) -> Engine:
    engine = make_engine(options=OPTIONS)
    engine._core._ahead = 1
    return engine


def test_outputs_are_those_of_steps_one_by_one(make_engine: Make, plain_engine: Any, engine: Engine) -> None:
    prompts, params = make_prompts(24), make_params(24)
    expected = plain_engine(OPTIONS).generate(prompts, params)
    assert engine.generate(prompts, params) == expected
    assert not engine.busy


def test_a_step_returns_the_events_of_the_previous_step(engine: Engine) -> None:
    request = engine.submit([1, 2, 3], SamplingParams(max_new_tokens=3, ignore_eos=True))
    seen: list[list[Event]] = []
    while engine.busy:
        seen.append(engine.step())
    assert [len(events) for events in seen] == [0, 1, 1, 1]
    assert engine.stats.steps == 3
    assert request.finish_reason == "length"


def test_a_request_that_ends_early_costs_one_row_of_one_step(engine: Engine) -> None:
    prompt = [5, 6, 7]
    (free,) = engine.generate([prompt], SamplingParams(max_new_tokens=6, ignore_eos=True))
    steps, rows = engine.stats.steps, engine.stats.decode_tokens
    ends = SamplingParams(max_new_tokens=6, ignore_eos=True, stop_token_ids=(free.tokens[1],))
    (early,) = engine.generate([prompt], ends)
    assert early.tokens == free.tokens[:2]
    assert engine.stats.steps - steps == 3
    assert engine.stats.decode_tokens - rows == 2


def test_a_failing_step_first_delivers_the_previous_step(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = engine.submit([1, 2, 3], SamplingParams(max_new_tokens=8, ignore_eos=True))
    engine.step()
    assert request.tokens == []

    def broken(*_: Any) -> Any:
        raise RuntimeError("a backend")

    monkeypatch.setattr(engine._runner, "run", broken)
    with pytest.raises(RuntimeError, match="a backend"):
        engine.step()
    assert len(request.tokens) == 1
    assert request.finish_reason == "error"
    monkeypatch.undo()
    assert not engine.busy
    assert [event.token is None for event in engine.step()] == [False, True]
    assert len(engine.pools.pages) == engine.pools.pages.capacity


def test_tokens_that_never_arrive_end_the_requests_of_their_step(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a step's tokens never arrive, the step's requests end, and later requests work."""
    first = engine.submit([1, 2, 3], SamplingParams(max_new_tokens=8, ignore_eos=True))
    engine.step()

    def lost() -> list[int]:
        raise RuntimeError("the device")

    monkeypatch.setattr(engine._core._flights[0].tokens, "read", lost)
    later = engine.submit([4], SamplingParams(max_new_tokens=2, ignore_eos=True))
    with pytest.raises(RuntimeError, match="the device"):
        engine.step()
    assert (first.finish_reason, first.step_failed) == ("error", True)
    while engine.busy:
        engine.step()
    assert later.finish_reason == "length"


def test_a_cancelled_request_frees_its_memory_at_once(engine: Engine) -> None:
    request = engine.submit([1] * 20, SamplingParams(max_new_tokens=8))
    other = engine.submit([2] * 4, SamplingParams(max_new_tokens=4, ignore_eos=True))
    engine.step()
    engine.step()
    assert engine.cancel(request)
    assert (request.slot, request.pages) == (0, [])
    while engine.busy:
        engine.step()
    assert other.finish_reason == "length"
    assert len(engine.pools.slots) == engine.pools.slots.capacity


def test_two_failed_steps_in_flight_end_the_requests_of_both(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If tokens never arrive and the next step fails too, the requests of both steps end.

    `step` raises the error of the launch.
    """
    first = engine.submit([1, 2, 3], SamplingParams(max_new_tokens=8, ignore_eos=True))
    engine.step()
    second = engine.submit([4], SamplingParams(max_new_tokens=8, ignore_eos=True))

    def broken(text: str) -> Callable[..., Any]:
        def fail(*_: Any) -> Any:
            raise RuntimeError(text)

        return fail

    monkeypatch.setattr(engine._core._flights[0].tokens, "read", broken("a read"))
    monkeypatch.setattr(engine._runner, "run", broken("a launch"))
    with pytest.raises(RuntimeError, match="a launch"):
        engine.step()
    assert [(request.finish_reason, request.step_failed) for request in (first, second)] == [
        ("error", True)
    ] * 2
    assert not engine.busy
    assert len(engine.pools.slots) == engine.pools.slots.capacity


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("stops", [False, True])
def test_an_interrupt_between_the_end_of_the_last_request_and_its_release_loses_no_memory(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, ahead: int, stops: bool
) -> None:
    engine._core._ahead = ahead
    prompt = [5, 6, 7]
    (free,) = engine.generate([prompt], SamplingParams(max_new_tokens=6, ignore_eos=True))
    stop_tokens = (free.tokens[1],) if stops else ()
    params = SamplingParams(max_new_tokens=6, ignore_eos=True, stop_token_ids=stop_tokens)
    request = engine.submit(prompt, params)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine._core.sequences, "release", interrupted)
    interrupts = 0
    for _ in range(9):
        try:
            engine.step()
        except KeyboardInterrupt:
            interrupts += 1
            monkeypatch.undo()
    assert interrupts == 1
    assert not engine.busy
    assert len(engine.pools.slots) == engine.pools.slots.capacity
    assert request.finish_reason == ("stop" if stops else "length")


def test_the_host_is_one_step_ahead_in_a_long_prompt_too(engine: Engine) -> None:
    """During a long prompt, too, the host is one step ahead.

    The prompt's steps give no tokens, so after a cancel there is nothing to read.
    """
    engine.submit([1] * 48, SamplingParams(max_new_tokens=2, ignore_eos=True))
    cancelled = engine.submit([2] * 60, SamplingParams(max_new_tokens=2))
    unread = []
    while not cancelled.length:
        engine.step()
        unread.append(len(engine._core._flights))
    assert unread == [1, 1, 1]
    while engine.busy and cancelled.length < 60:
        engine.step()
    assert engine.cancel(cancelled)
    while engine.busy:
        engine.step()
    assert not engine._core._flights
    assert len(engine.pools.pages) == engine.pools.pages.capacity


class NoWaiting(TorchFunctionMode):
    """Refuses operations that make the host wait for the device, even on a CPU, where they would not wait."""

    READS = (Tensor.item, Tensor.tolist, Tensor.cpu, Tensor.nonzero, Tensor.__bool__, Tensor.__int__)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        indexed = func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[1], list)
        copied = func is torch.tensor and kwargs.get("device") is not None
        moved = func is Tensor.to and not isinstance(args[1], torch.dtype) and not kwargs.get("non_blocking")
        if func in self.READS or indexed or copied or moved:
            raise AssertionError(f"{func} waits for the device")
        return func(*args, **kwargs)


def test_nothing_waits_for_the_device_between_two_launches(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Admissions, copies of pages and slots, and sampling don't wait for the device.

    Calls of backends are not checked.
    """
    core, forward = engine._core, runner._forward
    seen = []

    def outside(*args: Any) -> torch.Tensor:
        seen.append(args)
        with torch._C.DisableTorchFunction():
            return forward(*args)

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            with NoWaiting():
                return function(*args)

        return call

    monkeypatch.setattr(runner, "_forward", outside)
    monkeypatch.setattr(core._scheduler, "schedule", watched(core._scheduler.schedule))
    monkeypatch.setattr(core, "_launch", watched(core._launch))
    params = make_params(24)
    assert any(each.n > 1 for each in params)
    engine.generate(make_prompts(24), params)
    assert len(seen) == engine.stats.steps
