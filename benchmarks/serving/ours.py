"""Switchrail's engine as a contender of the benchmark."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from switchrail.engine import Engine, SamplingParams


class Ours:
    """Switchrail's engine.

    Args:
        engine: The engine.

    Attributes:
        loads: The number of running and of waiting requests in each step of the last `serve`.
    """

    name = "switchrail"

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.loads: list[tuple[int, int]] = []

    def run(self, prompts: Sequence[list[int]], new_tokens: int, sampling: Mapping[str, Any]) -> float:
        """Seconds until all prompts, submitted together, have all their new tokens."""
        params = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True, **sampling)
        start = time.perf_counter()
        requests = [self.engine.submit(prompt, params) for prompt in prompts]
        while self.engine.busy:
            self.engine.step()
        seconds = time.perf_counter() - start
        assert all(len(request.tokens) == new_tokens for request in requests)
        return seconds

    def serve(
        self,
        prompts: Sequence[list[int]],
        arrivals: Sequence[float],
        new_tokens: int,
        sampling: Mapping[str, Any],
    ) -> list[list[float]]:
        """The times in seconds of each token of each prompt, with prompts submitted at `arrivals`."""
        params = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True, **sampling)
        engine = self.engine
        numbers = {}
        times: list[list[float]] = [[] for _ in prompts]
        self.loads.clear()
        start = time.perf_counter()
        while len(numbers) < len(prompts) or engine.busy:
            now = time.perf_counter() - start
            while len(numbers) < len(prompts) and arrivals[len(numbers)] <= now:
                numbers[engine.submit(prompts[len(numbers)], params)] = len(numbers)
            if not engine.busy:
                time.sleep(max(arrivals[len(numbers)] - now, 0.0))
                continue
            events = engine.step()
            now = time.perf_counter() - start
            core = engine._core
            self.loads.append((len(core.sequences.live), len(core._scheduler.waiting)))
            for event in events:
                if event.token is not None:
                    times[numbers[event.request]].append(now)
        return times
