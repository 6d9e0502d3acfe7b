"""Misuse of an engine raises typed errors, and nothing hangs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from switchrail.engine import Engine, SamplingParams
from switchrail.errors import ArgumentError, EngineError, RequestError, SwitchrailError

from tests.forking import forked

from .test_failures import Broken, Saboteur
from .test_requests import is_idle

SMALL = {"max_sequences": 3, "num_pages": 40, "page_size": 4, "max_tokens_per_step": 16}
FREE = SamplingParams(max_new_tokens=6, ignore_eos=True)


@pytest.fixture
def engine(make_engine: Callable[..., Engine]) -> Engine:
    return make_engine(options=SMALL)


@pytest.mark.parametrize("way", ["generate", "stream"])
def test_both_threads_get_the_error_of_their_step(engine: Engine, way: str) -> None:
    """A failed step raises its error in both threads, whichever of them ran the step."""
    expected = engine.generate(["the", "x"], FREE)
    saboteur = Saboteur(engine)
    go_on = engine._go_on
    caught: list[BaseException] = []

    def run(prompt: str) -> None:
        try:
            if way == "generate":
                engine.generate([prompt], FREE)
            else:
                list(engine.stream([prompt], FREE))
        except BaseException as error:
            caught.append(error)

    def between_steps(requests: Any) -> bool:
        if requests[0].tokens:
            engine._go_on = go_on  # type: ignore[method-assign]
            saboteur.fail = "backend"
            other = threading.Thread(target=run, args=("x",))
            other.start()
            other.join()
        return go_on(requests)

    engine._go_on = between_steps  # type: ignore[method-assign]
    run("the")
    assert [type(error) for error in caught] == [Broken] * 2
    assert caught[0] is caught[1]
    assert is_idle(engine)
    assert engine.generate(["the", "x"], FREE) == expected


@pytest.mark.parametrize("found", [None, 3, "the", object()], ids=["None", "3", "the", "an object"])
def test_only_requests_can_be_cancelled(engine: Engine, found: Any) -> None:
    with pytest.raises(ArgumentError, match="cancel takes a Request, got"):
        engine.cancel(found)


def test_only_its_own_engine_cancels_a_request(engine: Engine, make_engine: Callable[..., Engine]) -> None:
    other = make_engine(options=SMALL)
    request = other.submit("the", FREE)
    for _ in range(2):
        with pytest.raises(RequestError, match="belongs to another engine"):
            engine.cancel(request)
        other.step()
    assert request.finish_reason is None
    assert other.cancel(request)


def test_a_closed_engine_has_no_pools(engine: Engine) -> None:
    request = engine.submit("the", FREE)
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        _ = engine.pools
    for call in (engine.submit, lambda prompt: engine.generate([prompt]), lambda p: list(engine.stream([p]))):
        with pytest.raises(EngineError, match="closed"):
            call("the")
    assert not engine.busy
    assert engine.stats.steps == 0
    assert [event.finish_reason for event in engine.step()] == ["cancelled"]
    assert not engine.cancel(request)


def within(engine: Engine, action: Callable[[], Any]) -> list[Any]:
    """Perform an action within a step; return a list with its result or exception."""
    found: list[Any] = []
    forward = engine._runner.model.forward

    def acting(**keywords: Any) -> Any:
        engine._runner.model.forward = forward
        try:
            found.append(action())
        except SwitchrailError as error:
            found.append(error)
        return forward(**keywords)

    engine._runner.model.forward = acting
    expected = engine.generate(["the"], FREE)
    assert expected == engine.generate(["the"], FREE)
    return found


def test_within_a_step_an_engine_can_neither_step_nor_close(engine: Engine) -> None:
    actions: list[tuple[Callable[[], Any], str]] = [
        (engine.close, "can't be closed from within its own step"),
        (engine.step, "from within a step"),
        (lambda: engine.generate(["x"], FREE), "from within a step"),
        (lambda: list(engine.stream(["x"], FREE)), "from within a step"),
    ]
    for action, words in actions:
        (error,) = within(engine, action)
        assert isinstance(error, EngineError)
        assert words in str(error)
        assert is_idle(engine)


def test_within_a_step_prompts_can_be_submitted(engine: Engine) -> None:
    (request,) = within(engine, lambda: engine.submit("x", FREE))
    while engine.busy:
        engine.step()
    assert request.output == engine.generate(["x"], FREE)[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_engine_refuses(engine: Engine) -> None:
    """In a forked child, the engine runs no requests, even if a thread of the parent was within a step.

    That thread's lock is never released in the child.
    """
    stream = engine.stream(["x"], FREE)
    next(stream)
    request = engine.submit("the", FREE)
    stepping, has_forked = threading.Event(), threading.Event()
    forward = engine._runner.model.forward

    def slow(**keywords: Any) -> Any:
        engine._runner.model.forward = forward
        stepping.set()
        assert has_forked.wait(60)
        return forward(**keywords)

    engine._runner.model.forward = slow
    thread = threading.Thread(target=engine.step)
    thread.start()
    assert stepping.wait(60)

    def work() -> None:
        calls: list[Callable[[], Any]] = [
            engine.step,
            lambda: engine.submit("x"),
            lambda: engine.generate(["x"]),
            lambda: list(engine.stream(["x"])),
            lambda: engine.cancel(request),
        ]
        for call in calls:
            with pytest.raises(EngineError, match="forked from it; make an engine in each process"):
                call()
        stream.close()
        engine.close()

    wait = forked(work)
    has_forked.set()
    thread.join()
    wait()
    stream.close()
    while engine.busy:
        engine.step()
    assert request.finish_reason == "length"
    assert is_idle(engine)


def test_stop_strings_have_a_limit() -> None:
    """Long stop strings are refused, because searching for them in each step would delay all requests."""
    assert len(SamplingParams(stop=tuple(map(str, range(64)))).stop) == 64
    assert SamplingParams(stop="x" * 1024).stop == ("x" * 1024,)
    with pytest.raises(RequestError, match=r"non-empty string of at most 1,024 characters"):
        SamplingParams(stop=("x", "x" * 1025))
    with pytest.raises(RequestError, match="a sequence of at most 64 of them") as caught:
        SamplingParams(stop=tuple(map(str, range(100_000))))
    assert len(str(caught.value)) < 1000
