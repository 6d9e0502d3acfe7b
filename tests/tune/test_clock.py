"""Timing of calls on a simulated device."""

from types import SimpleNamespace

import pytest
import torch
from switchrail.tune.clock import LAYERS, SECONDS, time_calls


@pytest.fixture
def log(monkeypatch):
    """The calls of the simulated device, in order. Its events are always 3 ms apart."""
    asked: list[object] = []

    class Event:
        def __init__(self, *, enable_timing):
            assert enable_timing

        def record(self):
            asked.append("event")

        def synchronize(self):
            pass

        def elapsed_time(self, other):
            return 3.0

    class Graph:
        def replay(self):
            asked.append("replay")

    class Capture:
        def __init__(self, graph):
            assert isinstance(graph, Graph)

        def __enter__(self):
            asked.append("capture")

        def __exit__(self, *error):
            asked.append("captured")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", Capture)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: asked.append(cycles))
    return asked


def measure(log, way, count=3):
    platform = SimpleNamespace(hardware=SimpleNamespace(synchronize=lambda: log.append("wait")))
    return time_calls([lambda: log.append("call")] * count, way, platform).nanoseconds


def test_a_graph_of_all_calls_is_replayed(log):
    assert measure(log, "graph") == 1_000_000
    rounds = ["call"] * 3
    assert log[:14] == [*rounds, "wait", *rounds, "wait", "capture", *rounds, "captured", "replay"]
    assert log[14:20] == ["event", "replay", "event"] * 2


def test_the_host_is_ahead_of_the_device(log):
    assert measure(log, "queued") == 1_000_000
    first = log.index("event")
    assert 0 < log[first - 1] <= SECONDS * 3e9
    assert log[first : first + 5] == ["event", "call", "call", "call", "event"]


def test_calls_come_as_the_host_makes_them(log):
    assert measure(log, "eager") == round(3_000_000 / LAYERS)
    assert all(isinstance(asked, str) for asked in log)
    assert log[-LAYERS - 2 :] == ["event", *["call"] * LAYERS, "event"]


def test_few_calls_that_take_long_are_timed(log, monkeypatch):
    seconds = iter(range(1000))
    monkeypatch.setattr("switchrail.tune.clock.time.perf_counter", lambda: float(next(seconds)))
    assert measure(log, "eager") == 1_000_000
    assert log[-5:] == ["event", "call", "call", "call", "event"]


def test_long_calls_run_once_before_they_are_timed(log, monkeypatch):
    monkeypatch.setattr("switchrail.tune.clock._MOST", 0.0)
    assert measure(log, "queued", count=1) == 3_000_000
    assert log[:3] == ["call", "wait", "call"]
    assert log[4] == "event"


def test_calls_on_the_host_are_timed_until_the_last_has_ended(log, monkeypatch):
    seconds = iter(range(1000))
    monkeypatch.setattr("switchrail.tune.clock.time.perf_counter", lambda: float(next(seconds)))
    assert measure(log, "host") == round(1e9 / 3), "one second from before the three calls to after the wait"
    assert "event" not in log
    assert log[-4:] == ["call", "call", "call", "wait"]


@pytest.mark.parametrize(
    ("milliseconds", "median", "spread"),
    [([3.0], 3.0, 0.0), ([2.0, 4.0], 3.0, 0.4), ([1.0, 1.0, 1.0, 1.0, 9.0, 9.0, 9.0], 1.0, 8.0)],
)
def test_the_spread_of_the_rounds(log, monkeypatch, milliseconds, median, spread):
    told = iter(milliseconds)
    monkeypatch.setattr(torch.cuda.Event, "elapsed_time", lambda *_: next(told))
    clock = iter([0.0, 0.0, 0.0, 0.0, 0.0, *[0.0] * (len(milliseconds) - 1), 9.0])
    monkeypatch.setattr("switchrail.tune.clock.time.perf_counter", lambda: next(clock))
    platform = SimpleNamespace(hardware=SimpleNamespace(synchronize=lambda: None))
    found = time_calls([lambda: None], "graph", platform)
    assert found.nanoseconds == median * 1_000_000
    assert found.spread == pytest.approx(spread)
