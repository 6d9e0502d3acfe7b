"""Timing: a captured graph, calls one by one, and host time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

Run = Callable[[], object]

L2_BYTES = 60 << 20
"""At least the size of any Hopper GPU's L2 cache."""


class Clock:
    """Times calls on one device.

    Args:
        device: The device. If it is not a GPU, the host's clock is used and nothing is captured.
        replays: Number of times that each measurement is repeated.
    """

    def __init__(self, device: torch.device, replays: int = 20) -> None:
        self.device = device
        self.replays = replays

    @property
    def captures(self) -> bool:
        """Whether the device has graphs."""
        return self.device.type == "cuda"

    def measure(self, runs: Sequence[Run]) -> dict[str, Any]:
        """Times several calls on different tensors, so that the L2 cache is cold.

        Returns:
            `graph_s` and `eager_s`: each the median and the deciles of a call in seconds. `host_s`: seconds
            of a call in the Python thread. `not_captured`: the reason, if there is no `graph_s`.
        """
        for run in runs:
            run()
        self.synchronize()
        times: dict[str, Any] = {}
        if self.captures:
            try:
                times["graph_s"] = summary(self._graph(runs))
            except Exception as error:  # capturing a peer may raise anything
                times["not_captured"] = f"{type(error).__name__}: {error}".partition("\n")[0]
                self.synchronize()
        times["eager_s"] = summary(self._eager(runs))
        times["host_s"] = self._host(runs[0])
        return times

    def synchronize(self) -> None:
        """Waits for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def ceilings(self) -> tuple[float, float]:
        """This run's copy bandwidth (bytes read and written per second) and bf16 matmul rate (FLOP/s)."""
        large = self.device.type == "cuda"
        pair = torch.randn(2, (1 << 30) if large else (1 << 20), dtype=torch.bfloat16, device=self.device)
        # not captured, because a copy node in a graph is slower
        seconds = statistics.median(self._eager([lambda: pair[0].copy_(pair[1])] * 2))
        bandwidth = pair.numel() * pair.element_size() / seconds
        side = 8192 if large else 256
        a, b = (torch.randn(side, side, dtype=torch.bfloat16, device=self.device) for _ in range(2))
        c = torch.matmul(a, b)  # before the capture, because the library's setup can't be captured
        times = (self._graph if self.captures else self._eager)([lambda: torch.matmul(a, b, out=c)])
        return bandwidth, 2 * side**3 / statistics.median(times)

    def _graph(self, runs: Sequence[Run]) -> list[float]:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                for run in runs:
                    run()
        except Exception:
            # otherwise the random generator would stay in capture mode, and later draws would fail
            fresh = torch.Generator(self.device).graphsafe_get_state()
            torch.cuda.default_generators[torch.cuda.current_device()].graphsafe_set_state(fresh)
            raise
        for _ in range(3):
            graph.replay()
        return self._events([graph.replay], self.replays, len(runs))

    def _eager(self, runs: Sequence[Run]) -> list[float]:
        runs[0]()
        if self.device.type == "cuda":
            return self._events(runs, max(self.replays, len(runs)), 1)
        times = []
        for number in range(self.replays):
            began = time.perf_counter()
            runs[number % len(runs)]()
            times.append(time.perf_counter() - began)
        return times

    def _events(self, runs: Sequence[Run], count: int, calls: int) -> list[float]:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        events[0].record()
        for number, event in enumerate(events[1:]):
            runs[number % len(runs)]()
            event.record()
        self.synchronize()
        return [first.elapsed_time(then) / 1e3 / calls for first, then in pairwise(events)]

    def _host(self, run: Run, calls: int = 8) -> float:
        times = []
        for _ in range(min(self.replays, 5)):
            self.synchronize()
            began = time.perf_counter()
            for _ in range(calls):
                run()
            times.append((time.perf_counter() - began) / calls)
        self.synchronize()
        return statistics.median(times)


def copies(bytes_moved: int) -> int:
    """The number of calls on different tensors after which the L2 cache is cold for the first; at most 64."""
    return min(64, max(1, -(-3 * L2_BYTES // max(1, bytes_moved))))


def summary(times: Sequence[float]) -> dict[str, Any]:
    """The median and the nine deciles."""
    return {"median": statistics.median(times), "deciles": statistics.quantiles(times, n=10)}
