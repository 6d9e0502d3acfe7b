"""Requests, from submission to end."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import switchrail
import torch
from switchrail.engine import Engine, EngineOptions, Event, Output, SamplingParams
from switchrail.errors import RequestError, SwitchrailError

from tests.engine.idle import is_idle

SMALL = {"max_sequences": 3, "num_pages": 40, "page_size": 4, "max_tokens_per_step": 16}
PROMPTS = ["In the beginning", "the", "and the other thing " * 3, "x", "seven days"]

FREE = SamplingParams(max_new_tokens=12, ignore_eos=True)


@pytest.fixture(scope="session")
def checkpoint(small_checkpoint: Path) -> Path:
    return small_checkpoint


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Iterator[Engine]:
    """An engine for tests that leave it idle."""
    with Engine(checkpoint, runtime=switchrail.Runtime(), device="cpu", options=SMALL) as engine:
        yield engine


def texts(events: list[Event], request: Any) -> str:
    return "".join(event.text for event in events if event.request is request)


def test_outputs_hold_prompt_tokens_and_text(engine: Engine) -> None:
    first, second = engine.generate(["the end", [5, 6, 7]], FREE)
    assert first.prompt == "the end"
    assert first.prompt_tokens == tuple(engine._tokenizer("the end")["input_ids"])
    assert second.prompt is None
    assert second.prompt_tokens == (5, 6, 7)
    for output in (first, second):
        assert len(output.tokens) == 12
        assert output.finish_reason == "length"
        assert output.error is None
        assert output.text == engine._tokenizer.decode(output.tokens, skip_special_tokens=True)
    assert is_idle(engine)


def test_crowded_requests_get_the_same_tokens_as_alone(make_engine: Callable[..., Engine]) -> None:
    """Five requests on three slots, with too few pages for all, get the same tokens as alone."""
    crowd = make_engine(options=SMALL).generate(PROMPTS, FREE)
    alone = make_engine(options=SMALL | {"max_sequences": 1})
    assert [alone.generate([prompt], FREE)[0] for prompt in PROMPTS] == crowd


def test_sampled_tokens_do_not_depend_on_the_batch(engine: Engine) -> None:
    params = [
        SamplingParams(max_new_tokens=12, temperature=1.0, top_k=40, top_p=0.95, seed=i, ignore_eos=True)
        for i in range(len(PROMPTS))
    ]
    crowd = engine.generate(PROMPTS, params)
    assert [
        engine.generate([prompt], param)[0] for prompt, param in zip(PROMPTS, params, strict=True)
    ] == crowd
    backwards = engine.generate(PROMPTS[::-1], params[::-1])
    assert backwards[::-1] == crowd
    other = engine.generate(
        PROMPTS, [SamplingParams(max_new_tokens=12, temperature=1.0, ignore_eos=True)] * 5
    )
    assert [output.tokens for output in other] != [output.tokens for output in crowd]


def test_stream_gives_each_token_and_the_whole_text(engine: Engine) -> None:
    expected = engine.generate(PROMPTS, FREE)
    events = list(engine.stream(PROMPTS, FREE))
    requests = sorted({event.request for event in events}, key=lambda request: request.id)
    assert len(requests) == len(PROMPTS)
    for request, output in zip(requests, expected, strict=True):
        own = [event for event in events if event.request is request]
        assert [event.token for event in own] == list(output.tokens)
        assert texts(events, request) == output.text == request.text
        assert [event.finish_reason for event in own] == [None] * 11 + ["length"]
        assert request.output == output


def test_tokens_come_before_the_end(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(options=SMALL)
    stream = engine.stream(["the"], FREE)
    event = next(stream)
    assert event.token is not None
    assert event.finish_reason is None
    assert len(event.request.tokens) == 1
    assert engine.stats.steps == 1
    stream.close()
    assert is_idle(engine)
    assert event.request.finish_reason == "cancelled"


def greedy(engine: Engine, prompt: str = "the") -> Output:
    return engine.generate([prompt], FREE)[0]


@pytest.mark.parametrize("place", [0, 5])
def test_end_tokens(make_engine: Callable[..., Engine], place: int) -> None:
    engine = make_engine(options=SMALL)
    full = greedy(engine)
    end = full.tokens[place]
    at = full.tokens.index(end)
    stop = SamplingParams(max_new_tokens=12, ignore_eos=True, stop_token_ids=(end,))
    (output,) = engine.generate(["the"], stop)
    assert output.tokens == full.tokens[: at + 1]
    assert output.finish_reason == "stop"
    assert output.text == engine._tokenizer.decode(full.tokens[:at])
    engine._end_tokens = frozenset([end])
    assert engine.generate(["the"], SamplingParams(max_new_tokens=12))[0].tokens == full.tokens[: at + 1]
    assert engine.generate(["the"], FREE)[0].tokens == full.tokens
    assert is_idle(engine)


def test_the_checkpoint_names_the_end_token(make_engine: Callable[..., Engine]) -> None:
    assert make_engine()._end_tokens == {256}


def test_stop_strings(engine: Engine) -> None:
    full = greedy(engine, "seven days")
    stop = full.text[4:6]
    at = full.text.index(stop)
    params = SamplingParams(max_new_tokens=12, ignore_eos=True, stop=stop)
    (output,) = engine.generate(["seven days"], params)
    assert output.text == full.text[:at]
    assert output.finish_reason == "stop"
    assert output.tokens == full.tokens[: len(output.tokens)]
    assert len(output.tokens) < len(full.tokens)
    events = list(engine.stream(["seven days"], params))
    assert "".join(event.text for event in events) == full.text[:at]
    assert is_idle(engine)


def test_submit_step_and_cancel(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(options=SMALL)
    requests = [engine.submit(prompt, FREE) for prompt in PROMPTS]
    assert engine.busy
    seen = engine.step()
    waiting, running = requests[-1], requests[0]
    assert "waiting" in repr(waiting)
    assert "running" in repr(running)
    assert engine.cancel(waiting)
    assert engine.cancel(running)
    assert not engine.cancel(running)
    while engine.busy:
        seen += engine.step()
    for request in requests:
        own = [event for event in seen if event.request is request]
        assert own[-1].finish_reason == request.finish_reason
        assert [event.token for event in own if event.token is not None] == request.tokens
        assert texts(seen, request) == request.text
    assert [request.finish_reason for request in requests] == ["cancelled", *["length"] * 3, "cancelled"]
    assert waiting.tokens == []
    assert engine.step() == []
    assert is_idle(engine)


def test_other_requests_continue_during_generate(engine: Engine) -> None:
    alone = greedy(engine, "x")
    request = engine.submit("x", FREE)
    engine.generate(["the other"], FREE)
    events = []
    while engine.busy or not events:
        events += engine.step()
    assert tuple(event.token for event in events) == alone.tokens == tuple(request.tokens)


def test_first_come_first_served(make_engine: Callable[..., Engine]) -> None:
    """A short request does not overtake a long one that waits for pages."""
    engine = make_engine(options=SMALL | {"num_pages": 21})
    long = [1] * 60
    params = SamplingParams(max_new_tokens=12, ignore_eos=True)
    first, second, third = (engine.submit(prompt, params) for prompt in (long, long, [1]))
    while first.finish_reason is None:
        engine.step()
        assert second.slot == 0
        assert third.slot == 0
    while second.finish_reason is None:
        engine.step()
    while engine.busy:
        engine.step()
    assert third.finish_reason == "length"
    assert second.tokens == first.tokens
    assert is_idle(engine)


def test_decoding_goes_on_while_a_long_prompt_is_prefilled(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(options=SMALL | {"prefill_chunk": 4})
    short = engine.submit("x", FREE)
    engine.step()
    long = engine.submit([1] * 40, FREE)
    for count in range(2, 11):
        engine.step()
        assert len(short.tokens) == count
        assert long.tokens == []
        assert long.length == 4 * (count - 1)
    while engine.busy:
        engine.step()


def test_steps_keep_to_their_rows(
    make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(options=SMALL)
    sizes = []
    build = engine._runner.builder.build

    def measured(schedule: Any, *memory: Any) -> Any:
        step = build(schedule, *memory)
        sizes.append(step.input_ids.shape[1])
        return step

    monkeypatch.setattr(engine._runner.builder, "build", measured)
    engine.generate(PROMPTS, FREE)
    assert max(sizes) == 16
    assert sum(sizes) == engine.stats.prefill_tokens + engine.stats.decode_tokens


@pytest.mark.parametrize(
    ("prompt", "params", "words"),
    [
        ([], SamplingParams(), "no tokens"),
        ("", SamplingParams(), "no tokens"),
        ([320], SamplingParams(), "has 320 as a token id; valid: 0 to 319"),
        ([-1], SamplingParams(), "has -1 as a token id"),
        ([1.5], SamplingParams(), "a string or token ids"),
        ([True], SamplingParams(), "a string or token ids, got \\[True]"),
        (b"abc", SamplingParams(), "a string or token ids, got b'abc'"),
        ({7: "x"}, SamplingParams(), "a string or token ids, got {7: 'x'}"),
        ({7}, SamplingParams(), "a string or token ids, got \\{7\\}"),
        (iter([7]), SamplingParams(), "a string or token ids, got <list_iterator"),
        (None, SamplingParams(), "a string or token ids, got None"),
        (torch.tensor(7), SamplingParams(), "a string or token ids, got tensor"),
        ([10**5000], SamplingParams(), "an integer of 16610 bits, .* as a token id"),
        ([10**5000, "x"], SamplingParams(), "a string or token ids, got a list, whose repr raised"),
        (7, SamplingParams(), "a string or token ids"),
        ("lone \ud800", SamplingParams(), "can't be tokenized"),
        ("the", {"max_new_tokens": 3}, "params must be SamplingParams"),
        ([1] * 1000, SamplingParams(max_new_tokens=25), "are 1025; a sequence can have at most 1024"),
        ([1] * 146, SamplingParams(max_new_tokens=12), "need 40 pages of 4 tokens; the pool has 39"),
    ],
)
def test_requests_that_can_never_run(engine: Engine, prompt: Any, params: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        engine.submit(prompt, params)
    with pytest.raises(RequestError, match=f"^prompt 2 of 2.*: .*{words}") as caught:
        engine.generate(["the", prompt], [FREE, params])
    assert caught.value.fields["index"] == 1
    assert is_idle(engine)
    assert greedy(engine).finish_reason == "length"


def test_the_largest_request_that_fits_runs(engine: Engine) -> None:
    (output,) = engine.generate([[1] * 145], FREE)
    assert output.finish_reason == "length"
    assert len(output.tokens) == 12


@pytest.mark.parametrize(
    ("prompts", "params", "words"),
    [
        ("the", None, "got one string"),
        (["a", "b"], [FREE], "2 prompts, but 1 SamplingParams"),
        (None, None, "prompts must be a sequence of prompts, got None"),
        (5, None, "prompts must be a sequence of prompts, got 5"),
        (b"abc", None, "prompts must be a sequence of prompts, got b'abc'"),
        ({"a": "b"}, None, "prompts must be a sequence of prompts, got {'a': 'b'}"),
        (iter(["a"]), None, "prompts must be a sequence of prompts, got <list_iterator"),
        (["a"], 5, "params must be SamplingParams, or a sequence with one for each prompt, got 5"),
        (
            ["a"],
            {"a": FREE},
            "params must be SamplingParams, or a sequence with one for each prompt, got {",
        ),
        (["a"], [None], "params must be SamplingParams, got None"),
    ],
)
def test_generate_called_wrongly(engine: Engine, prompts: Any, params: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        engine.generate(prompts, params)
    with pytest.raises(RequestError, match=words):
        list(engine.stream(prompts, params))


def test_arrays_are_sequences(engine: Engine) -> None:
    expected = engine.generate(([5, 6], [7, 8]), (FREE, FREE))
    assert engine.generate(np.array([[5, 6], [7, 8]]), FREE) == expected  # type: ignore[arg-type]
    assert engine.generate(torch.tensor([[5, 6], [7, 8]]), FREE) == expected  # type: ignore[arg-type]


def test_nothing_to_generate(engine: Engine) -> None:
    assert engine.generate([]) == []
    assert list(engine.stream([])) == []


def test_a_closed_engine_frees_its_memory(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(options=SMALL)
    greedy(engine)
    held = [weakref.ref(tensor) for tensor in engine.pools.tensors()]
    held += [weakref.ref(weight) for weight in engine._runner.model.parameters()]
    engine.close()
    assert len(held) > 20
    assert all(tensor() is None for tensor in held)


def test_a_closed_engine_refuses(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(options=SMALL)
    request = engine.submit("the", FREE)
    engine.step()
    engine.close()
    engine.close()
    assert request.finish_reason == "cancelled"
    with pytest.raises(SwitchrailError, match="closed"):
        engine.generate(["the"])


def test_threads_share_an_engine(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(options=SMALL)
    expected = [engine.generate([prompt], FREE)[0] for prompt in PROMPTS]
    found: list[Any] = [None] * len(PROMPTS)

    def stream(i: int) -> None:
        events = list(engine.stream([PROMPTS[i]], FREE))
        found[i] = (events[-1].request.output, "".join(event.text for event in events))

    threads = [threading.Thread(target=stream, args=(i,)) for i in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(output, output.text) for output in expected]
    assert is_idle(engine)


def test_options_can_be_given_as_an_object(make_engine: Callable[..., Engine]) -> None:
    options = EngineOptions(**SMALL)
    assert make_engine(options=options).options == replace(options, memory_fraction=0.25)
