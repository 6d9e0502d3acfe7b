"""Host time of a decode: from scheduling to launch, and for processing tokens."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from switchrail.engine import Engine, SamplingParams
from switchrail.engine.core import EngineCore
from switchrail.engine.flight import Sent
from switchrail.engine.scheduler import Scheduler

from benchmarks.serving.slices import make_prompts

NEW_TOKENS = 192
SKIPPED = 8
"""Steps that are not counted after the prefill and before the end."""


def measure(engine: Engine, batch: int) -> dict[str, Any]:
    """Milliseconds of the host in decode steps of `batch` concurrent sequences.

    `launch_ms` is the time from the start of scheduling until everything is launched. `results_ms` is the
    time for processing the previous step's tokens (text, stops, events), without the wait for these tokens.
    `step_ms` is the whole step. Each is a median; `p99_over_median` is computed from whole steps.
    """
    params = SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True, stop=("never\N{SNOWMAN}",))
    requests = [engine.submit(prompt, params) for prompt in make_prompts(batch)]
    while not all(request.tokens for request in requests):
        engine.step()
    launches, results, steps = [], [], []
    with _parts() as parts:
        while all(len(request.tokens) < NEW_TOKENS - SKIPPED for request in requests):
            parts.clear()
            start = time.perf_counter()
            engine.step()
            end = time.perf_counter()
            steps.append(end - start)
            launches.append(parts["launched"] - parts["scheduling"])
            results.append(end - parts["launched"] - parts["waited"])
    while engine.busy:
        engine.step()
    ordered = sorted(steps[SKIPPED:])
    median = statistics.median(ordered)
    return {
        "batch": batch,
        "launch_ms": statistics.median(launches[SKIPPED:]) * 1e3,
        "results_ms": statistics.median(results[SKIPPED:]) * 1e3,
        "step_ms": median * 1e3,
        "p99_over_median": ordered[int(0.99 * len(ordered))] / median,
        "steps": len(ordered),
    }


@contextmanager
def _parts() -> Iterator[dict[str, float]]:
    """Yields a dict that each step fills, in seconds.

    `scheduling` and `launched` are the times at which scheduling began and the launch ended; `waited` is how
    long the host waited for tokens.
    """
    parts: dict[str, float] = {}
    schedule, launch, read = Scheduler.schedule, EngineCore._launch, Sent.read

    def timed_schedule(self: Scheduler, *args: Any) -> Any:
        parts["scheduling"] = time.perf_counter()
        return schedule(self, *args)

    def timed_launch(self: EngineCore, *args: Any) -> Any:
        flight = launch(self, *args)
        parts["launched"] = time.perf_counter()
        return flight

    def timed_read(self: Sent) -> list[int]:
        start = time.perf_counter()
        tokens = read(self)
        parts["waited"] = time.perf_counter() - start
        return tokens

    with (
        patch.object(Scheduler, "schedule", timed_schedule),
        patch.object(EngineCore, "_launch", timed_launch),
        patch.object(Sent, "read", timed_read),
    ):
        yield parts
