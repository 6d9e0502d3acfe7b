"""After a failure, the engine frees the pages and slots of failed requests, and other requests continue."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import switchrail
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from switchrail.engine import Engine, Request, SamplingParams
from switchrail.errors import DispatchError, RequestError

from tests.engine.around import around_backends
from tests.engine.idle import is_idle

SMALL = {"max_sequences": 3, "num_pages": 12, "page_size": 4, "max_tokens_per_step": 8}
FREE = SamplingParams(max_new_tokens=6, ignore_eos=True)


@pytest.fixture(scope="session")
def checkpoint(odd_checkpoint: Path) -> Path:
    return odd_checkpoint


class Broken(Exception):
    pass


def test_an_interrupt_while_one_token_is_accepted_spares_other_requests(
    make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ctrl-C while a step's tokens are decoded to text, other requests continue."""
    engine = make_engine(options=SMALL)
    prompts = [[1, 2], [3, 4], [5] * 10]
    expected = engine.generate(prompts, FREE)
    accept = Request.accept
    requests = [engine.submit(prompt, FREE) for prompt in prompts]

    def interrupted(request: Request, token: int) -> None:
        if request is requests[1]:
            raise KeyboardInterrupt
        accept(request, token)

    monkeypatch.setattr(Request, "accept", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    monkeypatch.undo()
    assert [len(request.tokens) for request in requests] == [1, 0, 0]
    assert requests[1].finish_reason == "error"
    while engine.busy:
        engine.step()
    assert [requests[i].output for i in (0, 2)] == [expected[i] for i in (0, 2)]
    assert is_idle(engine)


def test_a_failed_admission_ends_its_request(
    make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the admission of a request fails, the request ends and is not tried again."""
    engine = make_engine(options=SMALL)
    admit = engine._core.sequences.admit
    failures = 0

    def broken(*args: Any) -> None:
        nonlocal failures
        failures += 1
        if failures > 1:
            monkeypatch.undo()  # otherwise the test would not end
        admit(*args)
        raise Broken

    monkeypatch.setattr(engine._core.sequences, "admit", broken)
    other = engine.submit([5], FREE)
    with pytest.raises(Broken):
        engine.generate([[1, 2]], FREE)
    assert failures == 2
    assert (other.finish_reason, type(other.error)) == ("error", Broken)
    assert is_idle(engine)


class Saboteur:
    """Causes one failure, of the kind in `fail`.

    `backend`: the next call of layer 2's gated_delta backend; `text`: the next decoding to text; `logits`:
    NaN in the next row of logits.
    """

    def __init__(self, engine: Engine) -> None:
        self.fail: str | None = None
        decode, forward = engine._decode, engine._runner.model.forward

        def failing_run(place: tuple[int, str], phase: str, run: Callable[[], Any]) -> Any:
            if self.fail == "backend" and place == (2, "gated_delta"):
                self.fail = None
                raise Broken("a backend")
            return run()

        def failing_decode(ids: list[int]) -> str:
            if self.fail == "text":
                self.fail = None
                raise Broken("a tokenizer")
            return decode(ids)

        def failing_forward(**keywords: Any) -> Any:
            output = forward(**keywords)
            if self.fail == "logits" and output.logits.shape[1]:
                self.fail = None
                output.logits[0, -1] = float("nan")
            return output

        around_backends(engine._runner.dispatcher, failing_run)
        engine._decode = failing_decode
        engine._runner.model.forward = failing_forward


@pytest.fixture
def engine(make_engine: Callable[..., Engine]) -> Engine:
    return make_engine(options=SMALL)


def test_a_failing_backend_ends_the_requests_of_its_step(engine: Engine) -> None:
    expected = engine.generate(["the", "x"], FREE)
    saboteur = Saboteur(engine)
    running = [engine.submit(prompt, FREE) for prompt in ("the", "x", "other", "last")]
    engine.step()
    saboteur.fail = "backend"
    with pytest.raises(Broken):
        engine.step()
    failed = [request for request in running if request.finish_reason == "error"]
    assert failed
    assert all(isinstance(request.error, Broken) for request in failed)
    events = []
    while engine.busy:
        events += engine.step()
    assert {event.request for event in events if event.finish_reason == "error"} == set(failed)
    assert all(request.finish_reason == "length" for request in running if request not in failed)
    assert is_idle(engine)
    assert engine.generate(["the", "x"], FREE) == expected


def test_a_device_that_is_lost_ends_every_request(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the device is lost, the engine ends every request.

    Since no step can begin, `generate` would otherwise retry forever.
    """
    waiting = engine.submit("earlier", SamplingParams(max_new_tokens=3))

    def lost() -> Any:
        raise RuntimeError("the device is lost")

    monkeypatch.setattr(engine._core, "_on_stream", lost)
    with pytest.raises(RuntimeError, match="the device is lost"):
        engine.generate(["now"], SamplingParams(max_new_tokens=3))
    assert waiting.finish_reason == "error"
    assert is_idle(engine)


def test_generate_raises_a_backends_exception(engine: Engine) -> None:
    saboteur = Saboteur(engine)
    saboteur.fail = "backend"
    with pytest.raises(Broken) as caught:
        engine.generate(["the", "x", "other", "last", "the"], FREE)
    assert caught.value.__notes__ == ["backend torch failed in gated_delta prefill of layer 2"]  # type: ignore[attr-defined]
    assert is_idle(engine)


def test_an_error_outside_a_backend_names_no_backend(engine: Engine) -> None:
    engine.generate(["the"], FREE)

    def broken(**keywords: Any) -> Any:
        raise Broken("a layer")

    engine._runner.model.forward = broken
    with pytest.raises(Broken) as caught:
        engine.generate(["the"], FREE)
    assert not hasattr(caught.value, "__notes__")


def test_a_failed_step_does_not_fail_requests_that_it_did_not_run(engine: Engine) -> None:
    expected = engine.generate(["x"], FREE)
    saboteur = Saboteur(engine)
    others = [engine.submit("the", FREE) for _ in range(SMALL["max_sequences"])]
    saboteur.fail = "backend"
    assert engine.generate(["x"], FREE) == expected
    assert [type(request.error) for request in others] == [Broken] * len(others)
    assert is_idle(engine)


def test_cancelling_from_within_a_step_waits_for_its_end(engine: Engine) -> None:
    """A cancel within a step takes effect when the step ends. For example, the garbage collector may close a
    stream within a step."""
    expected = engine.generate(["x"], FREE)
    decoding = engine.submit("the", FREE)
    engine.step()
    running = [decoding, *(engine.submit(prompt, FREE) for prompt in ("other " * 3, "x", "last"))]
    pages = []

    def cancelling_run(place: tuple[int, str], phase: str, run: Callable[[], Any]) -> Any:
        if place == (2, "gated_delta") and phase == "decode" and not pages:
            pages.append([list(request.pages) for request in running])
            for request in (running[0], running[1], running[3]):
                assert engine.cancel(request)
            assert [list(request.pages) for request in running] == pages[-1]
        return run()

    around_backends(engine._runner.dispatcher, cancelling_run)
    engine.step()
    assert len(pages) == 1
    assert [request.finish_reason for request in running] == ["cancelled", "cancelled", None, "cancelled"]
    while engine.busy:
        engine.step()
    assert running[2].output == expected[0]
    assert is_idle(engine)


@pytest.mark.parametrize(("kind", "error"), [("text", Broken), ("logits", RequestError)])
def test_a_request_fails_alone(engine: Engine, kind: str, error: type[Exception]) -> None:
    expected = engine.generate(["the", "x"], FREE)
    saboteur = Saboteur(engine)
    first, second = (engine.submit(prompt, FREE) for prompt in ("the", "x"))
    engine.step()
    saboteur.fail = kind
    while engine.busy:
        engine.step()
    ended = {request.finish_reason: request for request in (first, second)}
    assert set(ended) == {"error", "length"}
    assert isinstance(ended["error"].error, error)
    assert ended["length"].output == expected[(first, second).index(ended["length"])]
    assert is_idle(engine)


def test_an_interrupt_in_a_text_ends_that_request_and_delays_the_next(
    engine: Engine,
) -> None:
    running = [engine.submit(prompt, FREE) for prompt in ("the", "x")]
    engine.step()

    def interrupted(ids: list[int]) -> str:
        raise KeyboardInterrupt

    for request in running:
        request.stream._decode = interrupted
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert [request.finish_reason for request in running] == ["error", None]
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert [request.finish_reason for request in running] == ["error", "error"]
    assert [len(request.tokens) for request in running] == [1, 1]
    assert is_idle(engine)


def test_a_text_that_fails_at_the_end_is_an_error_of_that_request(engine: Engine) -> None:
    saboteur = Saboteur(engine)
    request = engine.submit("the", FREE)
    engine.step()
    saboteur.fail = "text"
    assert engine.cancel(request)
    assert request.finish_reason == "error"
    assert isinstance(request.error, Broken)
    assert is_idle(engine)


@pytest.fixture(scope="module")
def shared(checkpoint: Path) -> Iterator[tuple[Engine, Saboteur]]:
    with Engine(checkpoint, runtime=switchrail.Runtime(), device="cpu", options=SMALL) as engine:
        yield engine, Saboteur(engine)


ACTIONS = st.one_of(
    st.tuples(st.just("submit"), st.integers(1, 45), st.integers(1, 8)),
    st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0)),
    st.tuples(st.just("step"), st.just(0), st.just(0)),
    st.tuples(st.just("break"), st.sampled_from(["backend", "text", "logits"]), st.just(0)),
)


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(ACTIONS, max_size=25), st.integers(0, 1000))
def test_nothing_leaks(
    shared: tuple[Engine, Saboteur], actions: list[tuple[str, Any, int]], seed: int
) -> None:
    """After any sequence of submits, cancels and failures, all requests are finished and all memory is
    free."""
    engine, saboteur = shared
    draw = random.Random(seed)
    requests: list[Request] = []
    for tensor in engine.pools.tensors():
        tensor.fill_(float("nan"))
    try:
        for action, value, count in actions:
            if action == "submit":
                params = SamplingParams(max_new_tokens=count, temperature=draw.choice([0, 1]), seed=1)
                try:
                    requests.append(engine.submit([draw.randrange(320) for _ in range(value)], params))
                except RequestError:
                    assert value + count > 45
                except Broken:
                    pass
            elif action == "cancel":
                if requests:
                    engine.cancel(requests[value % len(requests)])
            elif action == "break":
                saboteur.fail = value
            else:
                _step(engine)
            held = [page for request in requests for page in request.pages]
            assert len(set(held)) == len(held) == engine.pools.pages.capacity - len(engine.pools.pages)
        saboteur.fail = None
        for _ in range(1000):
            if not engine.busy:
                break
            _step(engine)
        assert is_idle(engine)
        assert all(request.finish_reason is not None for request in requests)
        (output,) = engine.generate(["the"], FREE)
        assert output.finish_reason == "length"
    finally:
        saboteur.fail = None
        for request in requests:
            engine.cancel(request)


def _step(engine: Engine) -> None:
    with suppress(Broken):
        engine.step()


def replace_forward(engine: Engine, change: Callable[..., Any]) -> None:
    """Replace the forward of layer 2's mixer."""
    mixer = engine._runner.model.model.layers[2].linear_attn
    forward = mixer.forward
    mixer.forward = lambda *args, **kwargs: change(forward, *args, **kwargs)


def test_a_layer_that_skips_its_op_is_an_error(engine: Engine) -> None:
    replace_forward(engine, lambda forward, hidden_states, **kwargs: hidden_states)
    with pytest.raises(DispatchError, match="layer 2 did not run its gated_delta in this step"):
        engine.generate(["the"], FREE)
    assert is_idle(engine)


def test_a_layer_that_runs_twice_is_an_error(engine: Engine) -> None:
    def twice(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        forward(*args, **kwargs)
        return forward(*args, **kwargs)

    replace_forward(engine, twice)
    with pytest.raises(DispatchError, match="layer 2 ran its short_conv twice"):
        engine.generate(["the"], FREE)
    assert is_idle(engine)


def test_the_engines_model_can_not_be_called_from_outside(engine: Engine) -> None:
    with pytest.raises(DispatchError, match="outside of a step"):
        engine._runner.model(input_ids=torch.tensor([[1, 2]]), use_cache=False)


@pytest.mark.parametrize("option", ["sliding_window", "softcap", "s_aux"])
def test_attention_that_is_not_plain_is_refused(engine: Engine, option: str) -> None:
    mixer = engine._runner.model.model.layers[1].self_attn
    forward = mixer.forward
    mixer.forward = lambda *args, **kwargs: forward(*args, **kwargs, **{option: 8})
    with pytest.raises(DispatchError, match=option):
        engine.generate(["the"], FREE)
