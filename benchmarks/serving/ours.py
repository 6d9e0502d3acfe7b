"""Switchrail's engine as a contender of the benchmark."""

from __future__ import annotations

import time
from collections.abc import Sequence

from switchrail.engine import Engine, SamplingParams

from benchmarks.serving.slices import Work


class Ours:
    """Switchrail's engine.

    Args:
        engine: The engine.

    Attributes:
        loads: The numbers of running and of waiting requests in each step of the last `serve`.
    """

    name = "switchrail"

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.loads: list[tuple[int, int]] = []

    def run(self, work: Work) -> float:
        """Seconds until all prompts, submitted together, have all their new tokens."""
        params = _params(work)
        start = time.perf_counter()
        requests = [self.engine.submit(prompt, params) for prompt in work.prompts]
        while self.engine.busy:
            self.engine.step()
        seconds = time.perf_counter() - start
        assert all(len(request.tokens) == work.new_tokens for request in requests)
        return seconds

    def serve(self, work: Work, arrivals: Sequence[float]) -> list[list[float]]:
        """The times in seconds of each token of each prompt, with prompts submitted at `arrivals`."""
        prompts, params = work.prompts, _params(work)
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


def _params(work: Work) -> SamplingParams:
    return SamplingParams(max_new_tokens=work.new_tokens, ignore_eos=True, **work.sampling)
