"""Runs of contenders on the same prompts, one after the other: batches, long prompts, arrivals."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, Protocol

from benchmarks.serving.slices import LONG, Work, make_long_prompt, make_prompts

NEW_TOKENS = 64

LOAD = 0.7
"""The rate of arriving requests, relative to the first contender's peak throughput."""


class Contender(Protocol):
    """An engine to measure."""

    name: str

    def run(self, work: Work) -> float:
        """Seconds until all prompts, submitted together, have all their new tokens."""

    def serve(self, work: Work, arrivals: Sequence[float]) -> list[list[float]]:
        """The times in seconds of each token of each prompt, with prompts submitted at `arrivals`."""


def batches(
    contenders: Sequence[Contender], sizes: Sequence[int], repeats: int, sampling: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Prefill time, step time and throughput by batch size and contender: medians of alternating runs.

    The prefill time is that of a run with one new token. The step time is the extra time of a run with 64 new
    tokens, divided by 63.
    """
    for size in sizes:
        prompts = make_prompts(size)

        def pair(one: Contender, prompts: list[list[int]] = prompts) -> tuple[float, float]:
            return one.run(Work(prompts, 1, sampling)), one.run(Work(prompts, NEW_TOKENS, sampling))

        found = _alternating(contenders, repeats, pair)
        for one, times in zip(contenders, found, strict=True):
            whole = statistics.median(last for _, last in times)
            yield {
                "name": one.name,
                "batch": size,
                "chosen": " sampled" if sampling else "",
                "prompt_tokens": sum(map(len, prompts)),
                "prefill_ms": statistics.median(first for first, _ in times) * 1e3,
                "step_ms": statistics.median((last - first) / (NEW_TOKENS - 1) for first, last in times)
                * 1e3,
                "tokens_per_second": size * NEW_TOKENS / whole,
                "seconds": times,
            }


def long_prompts(contenders: Sequence[Contender], repeats: int) -> Iterator[dict[str, Any]]:
    """Prefill of one long prompt."""
    work = Work([make_long_prompt()], 1, {})
    found = _alternating(contenders, repeats, lambda one: one.run(work))
    for one, times in zip(contenders, found, strict=True):
        median = statistics.median(times)
        yield {"name": one.name, "prompt_tokens": LONG, "prefill_ms": median * 1e3, "seconds": times}


def _alternating(
    contenders: Sequence[Contender], repeats: int, measure: Callable[[Contender], Any]
) -> list[list[Any]]:
    """Measure each contender repeatedly, after one uncounted run; every second round in reverse order."""
    found: list[list[Any]] = [[] for _ in contenders]
    for one in contenders:
        measure(one)
    for repeat in range(repeats):
        order = list(zip(contenders, found, strict=True))
        for one, times in order if repeat % 2 == 0 else reversed(order):
            times.append(measure(one))
    return found


def arrivals(
    contenders: Sequence[Contender], size: int, seconds: float, sampling: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Latencies of prompts that arrive at random times, the same for all contenders.

    Args:
        contenders: The engines to measure.
        size: Batch size at which the first contender's throughput is measured as the peak.
        seconds: Duration of the arrivals.
        sampling: Sampling parameters.
    """
    batch = Work(make_prompts(size), NEW_TOKENS, sampling)
    rate = LOAD * size / statistics.median(contenders[0].run(batch) for _ in range(3))
    count = max(round(rate * seconds), 1)
    draw = random.Random(0)
    times = list(accumulate(draw.expovariate(rate) for _ in range(count)))
    work = Work(make_prompts(count, seed=2), NEW_TOKENS, sampling)
    few = count // 4 + 1
    for one in contenders:
        one.serve(work._replace(prompts=work.prompts[:few]), times[:few])
        found = one.serve(work, times)
        assert all(len(tokens) == NEW_TOKENS for tokens in found)
        waits = [tokens[0] - arrival for tokens, arrival in zip(found, times, strict=True)]
        gaps = [later - before for tokens in found for before, later in pairwise(tokens)]
        yield {
            "name": one.name,
            "requests": count,
            "requests_per_second": rate,
            "first_ms": _quantiles(waits),
            "between_ms": _quantiles(gaps),
            "tokens_per_second": count * NEW_TOKENS / max(chain.from_iterable(found)),
        }


def _quantiles(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        name: ordered[min(int(part * len(ordered)), len(ordered) - 1)] * 1e3
        for name, part in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    }
