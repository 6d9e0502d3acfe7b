"""Measures the time of calls, in one of several ways (see `Way`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from switchrail.platforms import Platform

Way = Literal["graph", "queued", "eager", "host"]
"""How calls are timed.

- `graph`: the replay of a CUDA graph of all calls.
- `queued`: on the device, with the calls queued in advance so the device never waits for the host.
- `eager`: the host launches up to `LAYERS` calls in a row; the time is the host's or the device's, whichever
  is longer.
- `host`: the host waits for each call before it makes the next.
"""

LAYERS = 48
"""Maximum number of calls that are timed together: about as many as a large model has layers."""

SECONDS = 0.05
"""Seconds for which a backend is timed with a batch; longer if fewer than `_LEAST` rounds fit."""

_LEAST = 5
"""Minimum number of timed rounds, unless they take longer than `_MOST` seconds."""

_MOST = 0.5
_WARM = 2
"""Maximum number of eager warm-up rounds."""

_CYCLES = 3e9
"""Upper bound of the device's clock frequency, in Hz."""


@dataclass(frozen=True, slots=True)
class Time:
    """The time of a call.

    Attributes:
        nanoseconds: The median over rounds.
        spread: The difference between the 80th and the 20th percentile of the rounds, divided by the median;
            0 if there was time for one round only.
    """

    nanoseconds: int
    spread: float


def time_calls(calls: Sequence[Callable[[], None]], way: Way, platform: Platform) -> Time:
    """The time of one call: the time of a round of all calls, divided by their number."""
    for _ in range(_WARM):
        began = time.perf_counter()
        for call in calls:
            call()
        ahead = min(time.perf_counter() - began, SECONDS) if way == "queued" else 0.0
        platform.hardware.synchronize()
        spent = time.perf_counter() - began
        if spent > _MOST:
            break
    if way == "eager":
        rounds = min(LAYERS / len(calls), SECONDS / _LEAST / spent)
        calls = [*calls] * max(1, int(rounds))
    once = _captured(calls) if way == "graph" else lambda: [call() for call in calls]
    clock = _host if way == "host" else partial(_device, ahead=ahead)
    once()
    times: list[float] = []
    began = time.perf_counter()
    spent = 0.0
    while spent < SECONDS or (len(times) < _LEAST and spent < _MOST):
        times.append(clock(once, platform))
        spent = time.perf_counter() - began
    middle = median(times)
    fast, *_, slow = quantiles(times, n=5, method="inclusive") if len(times) > 1 else (middle, middle)
    return Time(max(1, round(middle * 1e9 / len(calls))), (slow - fast) / middle)


def _captured(calls: Sequence[Callable[[], None]]) -> Callable[[], object]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph.replay


def _device(once: Callable[[], object], platform: Platform, ahead: float) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    if ahead:
        torch.cuda._sleep(int(ahead * _CYCLES))  # type: ignore[no-untyped-call]
    start.record()
    once()
    stop.record()
    stop.synchronize()
    milliseconds: float = start.elapsed_time(stop)
    return milliseconds * 1e-3


def _host(once: Callable[[], object], platform: Platform) -> float:
    began = time.perf_counter()
    once()
    platform.hardware.synchronize()
    return time.perf_counter() - began
