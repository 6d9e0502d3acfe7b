"""Several samples of one prompt: the same results as with separate prompts, but only one prefill."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import switchrail
from switchrail.engine import Engine, Output, SamplingParams
from switchrail.errors import RequestError

from .test_requests import is_idle

PAGE = 4
SIZES = {"max_sequences": 6, "num_pages": 60, "page_size": PAGE, "max_tokens_per_step": 16}
PARAMS = SamplingParams(n=4, max_new_tokens=9, temperature=1.0, seed=11, ignore_eos=True)
LENGTHS = [1, PAGE - 1, PAGE, PAGE + 1, 16, 23]  # prompts within a page, at its border, of several chunks


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Iterator[Engine]:
    """An engine for tests that leave it idle."""
    with Engine(checkpoint, runtime=switchrail.Runtime(), device="cpu", options=SIZES) as engine:
        yield engine


def separate(params: SamplingParams) -> list[SamplingParams]:
    assert params.seed is not None
    return [replace(params, n=1, seed=params.seed + i) for i in range(params.n)]


@pytest.mark.parametrize("length", LENGTHS)
def test_samples_equal_prompts_with_their_seeds(engine: Engine, length: int) -> None:
    prompt = [(7 * i + 3) % 250 for i in range(length)]
    expected = engine.generate([prompt] * 4, separate(PARAMS))
    assert len({output.tokens for output in expected}) == 4
    before = engine.stats.prefill_tokens
    assert engine.generate([prompt], PARAMS) == expected
    assert engine.stats.prefill_tokens - before == length
    assert is_idle(engine)


@pytest.mark.parametrize(
    "changes", [{"max_sequences": 2}, {"num_pages": 12}, {"prefill_chunk": 3}], ids=json.dumps
)
def test_samples_that_do_not_fit_together_run_one_after_another(
    engine: Engine, make_engine: Callable[..., Engine], changes: dict[str, int]
) -> None:
    tight = make_engine(options=SIZES | changes)
    prompts = ["seven days and", "x", "the beginning"]
    params = [PARAMS, replace(PARAMS, n=1, seed=2), replace(PARAMS, n=5, seed=90)]
    each = [param for whole in params for param in separate(whole)]
    repeated = [prompt for prompt, whole in zip(prompts, params, strict=True) for _ in range(whole.n)]
    assert tight.generate(prompts, params) == engine.generate(repeated, each)
    assert is_idle(tight)


def test_more_samples_than_sequences(engine: Engine) -> None:
    params = replace(PARAMS, n=20, max_new_tokens=3)
    assert engine.generate(["the end"], params) == engine.generate(["the end"] * 20, separate(params))
    assert is_idle(engine)


def test_samples_share_the_full_pages_of_their_prompt(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(options=SIZES)
    first = engine.submit([5] * (2 * PAGE + 1), PARAMS)
    samples = first.samples
    assert [sample.params.seed for sample in samples] == [11, 12, 13, 14]
    assert [sample.samples for sample in samples] == [samples] * 4
    engine.step()
    assert [len(sample.tokens) for sample in samples] == [1] * 4
    pages = [sample.pages for sample in samples]
    assert all(own[:2] == pages[0][:2] for own in pages)
    rest = [page for own in pages for page in own[2:]]
    assert len(set(rest)) == len(rest)
    needed = -(-(2 * PAGE + PARAMS.max_new_tokens) // PAGE)
    assert engine.pools.pages.capacity - len(engine.pools.pages) == 2 + 4 * (needed - 2)
    # samples end one by one, and the shared pages are released last
    for left, sample in zip((3, 2, 1, 0), samples, strict=True):
        assert engine.cancel(sample)
        taken = engine.pools.pages.capacity - len(engine.pools.pages)
        assert taken == (2 + left * (needed - 2) if left else 0)
    assert is_idle(engine)


@pytest.fixture(scope="module")
def three_chunks(checkpoint: Path) -> Iterator[tuple[Engine, list[int], list[Output]]]:
    """An engine that prefills a prompt in three chunks, this prompt, and the outputs of its samples."""
    options, prompt = SIZES | {"prefill_chunk": 6}, [*range(14)]
    with Engine(checkpoint, runtime=switchrail.Runtime(), device="cpu", options=options) as engine:
        yield engine, prompt, engine.generate([prompt] * 4, separate(PARAMS))


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("ended", [0, 2])
def test_a_sample_that_is_cancelled_leaves_the_others(
    three_chunks: tuple[Engine, list[int], list[Output]], steps: int, ended: int
) -> None:
    """A sample cancelled before, during or after the common prefill leaves the other samples intact."""
    engine, prompt, expected = three_chunks
    samples = engine.submit(prompt, PARAMS).samples
    for _ in range(steps):
        engine.step()
    assert engine.cancel(samples[ended])
    while engine.busy:
        engine.step()
    for i, sample in enumerate(samples):
        assert sample.finish_reason == ("cancelled" if i == ended else "length")
        assert i == ended or sample.output == expected[i]
    assert is_idle(engine)


def test_samples_without_a_seed_differ(engine: Engine) -> None:
    outputs = engine.generate(["x"], replace(PARAMS, seed=None))
    assert len({output.tokens for output in outputs}) == 4


def test_greedy_samples_are_equal_and_streamed(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(options=SIZES)
    params = SamplingParams(n=3, max_new_tokens=5, ignore_eos=True)
    events: list[Any] = list(engine.stream(["the", "x"], params))
    requests = sorted({event.request for event in events}, key=lambda request: request.id)
    assert [request.prompt for request in requests] == ["the"] * 3 + ["x"] * 3
    assert len({request.output.tokens for request in requests[:3]}) == 1
    assert requests[0].samples == tuple(requests[:3])
    assert engine.submit("the").samples[0].finish_reason is None


@pytest.mark.parametrize("n", [2, 1024])
def test_each_sample_needs_a_seed(n: int) -> None:
    most = 2**64 - n
    assert SamplingParams(n=n, seed=most).samples()[-1].seed == 2**64 - 1
    with pytest.raises(RequestError, match=rf"seed must be None or .* as n={n} uses .*got {most + 1}"):
        SamplingParams(n=n, seed=most + 1)
    assert SamplingParams(seed=2**64 - 1).samples()[0].seed == 2**64 - 1


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "2", 1025])
def test_an_invalid_number_of_samples(n: Any) -> None:
    with pytest.raises(RequestError, match="n must be an integer from 1 to 1024"):
        SamplingParams(n=n)
