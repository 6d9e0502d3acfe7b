"""The host time of a call of each op, outside of a graph.

    python benchmarks/host.py                      # every op in Triton, prefill and decode
    python benchmarks/host.py --op gated_delta --json host.json

Heads and head sizes are those of models. Most lengths are short, because the host time depends on a length
only if the length requires a second launch; one prefill of each linear op is long enough for that. Prints, in
microseconds per call:

- `again`, `median`, `cpu`: calls repeated with other tensors of the same shapes, as by the layers of a step,
  including the creation of the call object. They are timed in blocks of 50 between synchronisations, so that
  the device's queue is never full, with garbage collection off. `again` is the lower quartile over the
  blocks, `median` the median, and `cpu` the median of the thread's CPU time.
- `first`: the first call of a layer with new lengths. Its kernels are already compiled.
- `plan`: making the plan for new lengths, as once per step.
- `check`: the contract's check of a call whose shapes it has not checked before.

Before repeated calls are timed, their results must have the same bits as the first call's. The exit status is
1 if `again` misses its target.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import switchrail
import torch
import triton
from switchrail._core import LINEAR_OPS, OPS, PAGED_OPS
from switchrail.ops.backend import AnyBackend
from switchrail.ops.batch import Phase
from switchrail.ops.catalog import DEFINITIONS
from switchrail.testing.compare import same_bits
from switchrail.testing.inputs import Sample

BLOCKS, CALLS, FIRSTS = 80, 50, 12
TARGETS = {"decode": 15.0, "prefill": 60.0}
"""Microseconds that `again` may take."""

LENGTHS = {"decode": [1] * 8, "prefill": [160, 80]}
LONG, FEW = 8192, {"heads": 4, "value_heads": 8, "groups": 1}
"""A length, and numbers of heads, with which the kernels split the time axis of a sequence."""

FEWER = {"mla": {"H": 16}}
"""Smaller sizes for ops whose kernels, with a model's sizes, take longer on the GPU than on the host."""


@dataclass
class Case:
    """An op in a phase. Each sequence has a number of new tokens in `lengths`, after `past` cached tokens."""

    op: str
    phase: Phase
    lengths: list[int]
    past: int = 0

    @property
    def name(self) -> str:
        rows = f"B={len(self.lengths)}" if self.phase == "decode" else f"T={sum(self.lengths)}"
        return f"{rows} of {self.past}" if self.past else rows

    def make(self, lengths: list[int]) -> Sample:
        definition = DEFINITIONS[self.op]
        sizes = definition.generated({**definition.sizes[-1], "page": 64, **FEWER.get(self.op, {})})
        if lengths[0] >= LONG:
            sizes = {name: FEW.get(name, size) for name, size in sizes.items()}
        caches: dict[str, Any] = {"initial": "all"}
        if definition.paged:
            caches = {"kv_lengths": [n + self.past for n in lengths]}
        return definition.generator(
            lengths, phase=self.phase, dtype=torch.bfloat16, device="cuda", strided=False, **caches, **sizes
        )


def cases(ops: list[str]) -> list[Case]:
    found = []
    for op in ops:
        if op in PAGED_OPS:
            found += [Case(op, "decode", LENGTHS["decode"], past) for past in (100, 4000)]
        else:
            found.append(Case(op, "decode", LENGTHS["decode"]))
        found.append(Case(op, "prefill", LENGTHS["prefill"]))
        if op in LINEAR_OPS:
            found.append(Case(op, "prefill", [LONG]))
    return found


def measure(case: Case, backend: AnyBackend) -> dict[str, float]:
    """The microseconds that the module's description lists, by name."""
    pair = [case.make(case.lengths) for _ in range(2)]
    expected = pair[0].clone()
    plan = backend.plan(case.phase, pair[0].batch)
    expected.bind(backend, plan)()
    calls = [_anew(backend, call, plan) for call in pair]
    for call, run in zip(pair, calls, strict=True):
        run()
        if not same_bits(call.out, expected.out):
            raise SystemExit(f"{case.op} {case.phase}: repeating the call gives different bits")
    wall, cpu = [], []
    for _ in range(BLOCKS):
        torch.cuda.synchronize()
        start, used = time.perf_counter_ns(), time.thread_time_ns()
        for _ in range(CALLS // 2):
            calls[0]()
            calls[1]()
        wall.append((time.perf_counter_ns() - start) / CALLS / 1e3)
        cpu.append((time.thread_time_ns() - used) / CALLS / 1e3)
    firsts = [
        case.make([1] * (i + 9) if case.phase == "decode" else [n + 16 * i + 3 for n in case.lengths])
        for i in range(FIRSTS)
    ]
    planned, first, checked = [], [], []
    torch.cuda.synchronize()
    for call in firsts:
        begun = time.perf_counter_ns()
        plan = backend.plan(case.phase, call.batch)
        made = call.bind(backend, plan)
        start = time.perf_counter_ns()
        made()
        ended = time.perf_counter_ns()
        planned.append((start - begun) / 1e3)
        first.append((ended - start) / 1e3)
    for call in firsts:
        # `made` makes a new layer. Checks are remembered by layer, so this call isn't checked yet.
        made, features = call.made, tuple(call.contract.features)
        start = time.perf_counter_ns()
        call.contract.check_call(made, call.batch, features)
        checked.append((time.perf_counter_ns() - start) / 1e3)
    torch.cuda.synchronize()
    return {
        "again": statistics.quantiles(wall)[0],
        "median": statistics.median(wall),
        "cpu": statistics.median(cpu),
        "first": statistics.median(first),
        "plan": statistics.median(planned),
        "check": statistics.median(checked),
    }


def _anew(backend: AnyBackend, call: Sample, plan: object) -> Callable[[], object]:
    """A function that makes a new call object each time and runs it, as a layer does."""
    make, arguments, batch, run = type(call.made), tuple(call.made), call.batch, backend.run
    return lambda: run(make(*arguments), batch, plan)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--op", action="append", choices=sorted(OPS), help="only these ops")
    parser.add_argument("--backend", default="triton")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the results")
    options = parser.parse_args()
    runtime = switchrail.Runtime()
    runtime.load()
    registered = {op for op in OPS if options.backend in {b.name for b in runtime.backends(op)}}
    ops = [op for op in options.op or OPS if op in registered]
    if not ops:
        parser.error(f"no backend {options.backend!r} is registered for any of these ops")
    rows: list[dict[str, Any]] = []
    gc.disable()
    columns = ("again", "median", "cpu", "first", "plan", "check")
    print(f"{'op':12}{'phase':9}{'shape':17}" + "".join(f"{name:>8}" for name in columns) + "   target")
    for case in cases(ops):
        times = measure(case, runtime.build(case.op, options.backend))
        target = TARGETS[case.phase]
        verdict = "holds" if times["again"] <= target else "MISSED"
        figures = "".join(f"{times[name]:8.1f}" for name in columns)
        print(f"{case.op:12}{case.phase:9}{case.name:17}{figures}   {target:.0f}: {verdict}", flush=True)
        rows.append({"op": case.op, "phase": case.phase, "shape": case.name, "target": target, **times})
        gc.collect()
    if options.json:
        document = {
            "date": datetime.date.today().isoformat(),
            "device": torch.cuda.get_device_name(),
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "triton": triton.__version__,
            "load": os.getloadavg(),
            "unit": "us",
            "rows": rows,
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if all(row["again"] <= row["target"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
