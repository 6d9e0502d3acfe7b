"""With the measured times in docs/, `auto` chooses the fastest backend, or one within 3 % of it."""

import json
from pathlib import Path

import pytest
import switchrail
from switchrail.ops.attention.torch import TorchAttention
from switchrail.ops.gated_delta.torch import TorchGatedDelta
from switchrail.ops.mla.torch import TorchMla
from switchrail.tune import Batch, batches

DOCS = Path(__file__).parents[2] / "docs"
(MACHINE,) = json.loads((DOCS / "tuned.json").read_text())["machines"]
MEASUREMENTS = MACHINE["measurements"]
CLASSES = {"attention": TorchAttention, "gated_delta": TorchGatedDelta, "mla": TorchMla}
PHASES = ("prefill", "decode", "verify")
OTHERS = ("flashinfer", "flashqla", "cutedsl")
WITHIN = 1.03
MISSED = {("mla", "prefill", "T=1024 N=1 after 7168"): 1.92}
"""Benchmarked batches for which `auto` chooses a slower backend: the bound of its time over the fastest time.

docs/tuned.json has no batches of 1,024 rows. Today, `switchrail tune` also times such batches.
"""


@pytest.fixture(scope="module")
def runtime():
    runtime = switchrail.Runtime()
    for op, kind in CLASSES.items():
        runtime.register("triton", kind, op=op, phases=PHASES, priority=100)
        for name in OTHERS:
            runtime.register(name, kind, op=op, phases=PHASES, priority=50)
    return runtime


def decide(runtime, measurement):
    named = {name: measurement[name] for name in ("dtype", "head_size", "heads", "no_decay")}
    named |= {name: tuple(named[name]) for name in ("head_size", "heads")}
    return runtime.resolve(
        measurement["op"], measurement["phase"], device="cpu", measurements=[measurement], **named
    )


def like(op, rows, length):
    """A batch with this load: the rows of its sequences, and their cached tokens."""
    if op in ("attention", "mla"):
        return (rows,), (length + (rows - 1) // 2,)
    whole, rest = divmod(rows, length)
    return (length,) * whole + ((rest,) if rest else ()), None


def known_as(measurement):
    sizes = "x".join(map(str, measurement["head_size"]))
    gates = "-no-decay" if measurement["no_decay"] else ""
    return f"{measurement['op']}-{measurement['phase']}-{sizes}{gates}"


@pytest.mark.parametrize("measurement", MEASUREMENTS, ids=known_as)
def test_every_batch_that_was_tuned(runtime, measurement):
    decision = decide(runtime, measurement)
    op, samples = measurement["op"], measurement["samples"]
    assert samples
    for sample in samples:
        times = sample["nanoseconds"]
        seqlens, cached = like(op, sample["rows"], sample["length"])
        found = switchrail._core.load_of(op, seqlens, cached)
        assert found == (sample["rows"], sample["length"])
        assert times[decision.at(seqlens, cached)] <= 1.011 * min(times.values()), sample


def _benchmarked():
    """Batches of the benchmarks, each with the time of every tuned backend."""
    for run in json.loads((DOCS / "times.json").read_text())["runs"]:
        for result in run["results"]:
            for measurement in MEASUREMENTS:
                if is_of(result, measurement):
                    ways = measurement["ways"]
                    times = {
                        name: found["graph_s" if ways[name] == "graph" else "eager_s"]["median"]
                        for name, found in result["times"].items()
                        if name in ways
                    }
                    what = f"{known_as(measurement)} {result['shape']}"
                    yield pytest.param(measurement, result, times, id=what)


def is_of(result, measurement):
    sizes = result["sizes"]
    heads = {
        "gated_delta": ("H", "HV"),
        "attention": ("H", "HKV"),
        "mla": ("H",),
    }
    if any(result[name] != measurement[name] for name in ("op", "phase")):
        return False
    op = result["op"]
    same = [sizes[name] for name in heads[op]] == measurement["heads"][: len(heads[op])]
    if op == "attention":
        same &= sizes["D"] == measurement["head_size"][0]
    return same and result["shape"].endswith("g=0") == measurement["no_decay"]


BENCHMARKED = list(_benchmarked())


@pytest.mark.parametrize(("measurement", "result", "times"), BENCHMARKED)
def test_every_batch_that_was_benchmarked(runtime, measurement, result, times):
    seqlens = result["lengths"]
    paged = measurement["op"] in ("attention", "mla")
    cached = [length + result["past"] for length in seqlens] if paged else None
    chosen = decide(runtime, measurement).at(seqlens, cached)
    within = MISSED.get((result["op"], result["phase"], result["shape"]), WITHIN)
    assert times[chosen] <= within * min(times.values()), times


def test_missed_batches_are_timed(runtime):
    (case,) = (case.values for case in BENCHMARKED if case.values[1]["shape"] == "T=1024 N=1 after 7168")
    measurement, result, times = case
    seqlens, cached = result["lengths"], [length + result["past"] for length in result["lengths"]]
    assert Batch(lengths=tuple(seqlens), cached=tuple(cached)) in batches("mla", "prefill", large=True)
    rows, length = switchrail._core.load_of("mla", seqlens, cached)
    nanoseconds = {name: round(1e9 * time) for name, time in times.items()}
    sample = {"rows": rows, "length": length, "nanoseconds": nanoseconds}
    added = {**measurement, "samples": [*measurement["samples"], sample]}
    assert decide(runtime, added).at(seqlens, cached) == min(times, key=times.__getitem__) == "triton"


def test_some_benchmarked_batches_were_never_tuned():
    tuned = {
        (known_as(measurement), sample["rows"], sample["length"])
        for measurement in MEASUREMENTS
        for sample in measurement["samples"]
    }
    others = set()
    for measurement, result, _ in (case.values for case in BENCHMARKED):
        paged = measurement["op"] in ("attention", "mla")
        cached = [length + result["past"] for length in result["lengths"]] if paged else None
        load = switchrail._core.load_of(measurement["op"], result["lengths"], cached)
        if (known_as(measurement), *load) not in tuned:
            others.add((result["op"], result["phase"], result["shape"]))
    assert ("mla", "prefill", "T=1024 N=1 after 7168") in others
    assert ("gated_delta", "prefill", "28672 + 4096") in others
    assert len(others) >= 5, others
