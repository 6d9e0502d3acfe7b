"""Tests of the option `prompt_pause`, which makes prompts wait for decodes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from switchrail.engine import Engine, Request, SamplingParams

FOREVER = 1e9
SIZES = {"max_sequences": 8, "max_tokens_per_step": 16, "num_pages": 60, "page_size": 4}


def submit(engine: Engine, length: int, new_tokens: int = 2) -> Request:
    return engine.submit(
        [(3 * i + length) % 250 for i in range(length)],
        SamplingParams(max_new_tokens=new_tokens, ignore_eos=True),
    )


@pytest.fixture
def engine(make_engine: Callable[..., Engine]) -> Engine:
    """An engine with one decoding sequence, shortly after the step with that sequence's prompt."""
    engine = make_engine(options=SIZES | {"prompt_pause": FOREVER})
    submit(engine, 4, new_tokens=6)
    engine.step()
    return engine


def test_a_prompt_waits_until_nothing_decodes(engine: Engine) -> None:
    late = submit(engine, 5)
    for _ in range(5):
        engine.step()
        assert not late.tokens
    engine.step()
    assert len(late.tokens) == 1


def test_prompts_that_fill_a_step_don_t_wait(engine: Engine) -> None:
    late = [submit(engine, length) for length in (8, 6, 1)]  # one more row for the decode
    engine.step()
    assert [len(one.tokens) for one in late] == [1, 1, 1]


def test_prompts_that_a_full_step_leaves_don_t_wait(engine: Engine) -> None:
    late = [submit(engine, length) for length in (8, 7, 3)]
    engine.step()
    assert [len(one.tokens) for one in late] == [1, 1, 0]
    engine.step()
    assert len(late[2].tokens) == 1


def test_a_prompt_that_is_begun_doesn_t_wait(engine: Engine) -> None:
    late = submit(engine, 20)
    engine.step()
    engine.step()
    assert len(late.tokens) == 1


def test_without_a_pause_no_prompt_waits(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(options=SIZES)
    submit(engine, 4, new_tokens=6)
    engine.step()
    late = submit(engine, 5)
    engine.step()
    assert len(late.tokens) == 1


def test_the_pause_is_a_multiple_of_the_steps_time(
    make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("switchrail.engine.core.time.perf_counter", lambda: now[0])
    engine = make_engine(options=SIZES | {"prompt_pause": 2.0})
    launch = engine._core._launch

    def slow(*args: object) -> object:
        flight = launch(*args)  # type: ignore[arg-type]
        now[0] += 1.0  # each step takes a second
        return flight

    monkeypatch.setattr(engine._core, "_launch", slow)
    submit(engine, 4, new_tokens=9)
    engine.step()
    late = submit(engine, 5)
    steps = 0
    while not late.tokens:
        engine.step()
        steps += 1
    assert steps == 3


def test_tokens_are_the_same(make_engine: Callable[..., Engine]) -> None:
    lengths = [5, 9, 1, 12, 3, 30, 7, 2, 8, 16]
    found = []
    for pause in (None, 0.3, FOREVER):
        engine = make_engine(options=SIZES | {"prompt_pause": pause})
        requests = []
        for length in lengths:
            requests.append(submit(engine, length, new_tokens=4))
            engine.step()
        while engine.busy:
            engine.step()
        found.append([one.tokens for one in requests])
    assert found[0] == found[1] == found[2]
