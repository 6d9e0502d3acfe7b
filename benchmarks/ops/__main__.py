"""Times the backends of the ops, and other libraries' functions for the same computations (peers).

    python -m benchmarks.ops                             # everything, one line per case
    python -m benchmarks.ops --op gated_delta --shape N=16 --json times.json
    python -m benchmarks.ops --no-run --json docs/times.json --plot docs/plots --docs docs

Only what is correct is timed. Each backend is compared with the float64 reference on ragged inputs, with the
head sizes of the case. On the timed inputs, the results of all backends must agree; if only one backend fits,
it must agree with plain torch. Times are medians of three kinds:

- *graph*: time of a captured graph, divided by its number of calls. The calls have different tensors, so the
  L2 cache is cold. In decode there are 48 calls, each on its own states or cache.
- *eager*: time of a call, with calls launched one by one.
- *host*: time of a call in the Python thread.

The time of the backend that a route plan chooses (*auto*) is compared with the shortest time. In this
comparison, as in `switchrail tune`, a decode by a backend without the feature `cuda_graph` counts with its
eager time, printed as *called*. On a GPU, plain torch is only timed if it is chosen or named with --backend.
The floor is the larger of two times: the least number of bytes divided by this run's copy bandwidth, and the
floating-point operations divided by this run's bf16 matmul rate.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import switchrail
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from switchrail_kernels.describe import support, timed

from benchmarks.arguments import make_parser
from benchmarks.ops import document, plots, tables
from benchmarks.ops.backends import Backends
from benchmarks.ops.cases import OPS, cases, tiny
from benchmarks.ops.clock import Clock
from benchmarks.ops.run import LAYERS, Bench, compared, usual


def main(arguments: list[str] | None = None) -> int:
    """Runs the command.

    Returns:
        0; 1 if a backend was wrong or a case failed; otherwise 2 if there is no result.
    """
    parser = make_parser("ops", __doc__)
    parser.add_argument("--op", choices=OPS, action="append", help="only this op; repeatable")
    parser.add_argument("--phase", choices=("prefill", "decode"), help="only this phase")
    parser.add_argument("--shape", action="append", help="only shapes whose names contain this; repeatable")
    parser.add_argument("--backend", action="append", default=[], help="only this backend; repeatable")
    parser.add_argument("--no-peers", action="store_true", help="backends only")
    parser.add_argument("--device", help="default: the device of the runtime's platform")
    parser.add_argument("--tiny", action="store_true", help="small shapes for a CPU")
    parser.add_argument("--json", type=Path, help="results file; earlier results of other cases are kept")
    parser.add_argument("--no-run", action="store_true", help="time nothing; use the results in --json")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="draw the results as SVG (needs matplotlib)")
    parser.add_argument("--docs", type=Path, metavar="DIR", help="folder of the pages that get the tables")
    parser.add_argument("--tuned", type=Path, metavar="FILE", help="file of `switchrail tune`, for --docs")
    options = parser.parse_args(arguments)
    if options.no_run:
        if options.json is None:
            parser.error("--no-run takes its results from --json")
        kept, status = document.read(options.json), 0
    else:
        kept, status = _run(options)
    if not kept["runs"]:
        print("benchmarks.ops: no result", file=sys.stderr)
        return status or 2
    if options.plot:
        for path in plots.draw(kept, options.plot):
            print(f"drawn: {path}")
    if options.docs:
        kernels, page = options.docs / "kernels.md", options.docs / "times.md"
        tables.replace(kernels, "support", support())
        tables.replace(kernels, "timed", timed())
        tables.replace(page, "times", tables.times(kept))
        if options.tuned:
            tables.replace(page, "tuned", tables.tuned(document.read(options.tuned)))
        print(f"written: {kernels}, {page}")
    return status


def _run(options: argparse.Namespace) -> tuple[dict[str, Any], int]:
    runtime = switchrail.Runtime()
    runtime.load()
    platform = runtime.platform if options.device is None else runtime.find_platform(options.device)
    device = torch.device(platform.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    chosen = [
        case
        for op in options.op or OPS
        for case in cases(op)
        if options.phase in (None, case.phase)
        and (options.shape is None or any(text in case.name for text in options.shape))
    ]
    if options.tiny:
        chosen = [tiny(case) for case in chosen]
    clock = Clock(device, replays=3 if options.tiny else 20)
    backends = Backends(runtime, platform, dtype, options.backend)
    bench = Bench(
        backends, clock, dtype, layers=2 if options.tiny else LAYERS, with_peers=not options.no_peers
    )
    run = {**document.about(device, bench.bandwidth, bench.rate), "results": []}
    print(
        f"{run['device']}: copy {bench.bandwidth / 1e12:.2f} TB/s, matmul {bench.rate / 1e12:.0f} TFLOP/s; "
        + ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    )
    status = 0
    told: set[tuple[str, str, str]] = set()
    kept = {"runs": []} if options.json is None else document.read(options.json)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(chosen))
        for case in chosen:
            where = f"{case.op} {case.phase} {case.name}"
            progress.update(task, description=where)
            earlier: list[dict[str, Any]] = run["results"]
            shown: set[str] = set()
            try:
                for result in bench.results(case):
                    if result["times"]:
                        run["results"] = [*earlier, result]
                        if options.json:
                            document.write(options.json, document.merged(kept, run))
                    print(_line(result, shown), flush=True)
                    shown |= result["times"].keys()
            except Exception as failure:  # the results of other cases are still useful
                status = 1
                print(f"failed: {where}: {type(failure).__name__}: {failure}", file=sys.stderr, flush=True)
                continue
            for name, reason in result["wrong"].items():
                status = 1
                print(f"wrong: {name} in {where}: {reason}", file=sys.stderr, flush=True)
            for name, reason in result["left_out"].items():
                if (case.op, name, reason) not in told:
                    told.add((case.op, name, reason))
                    print(f"    left out: {name}: {reason}", flush=True)
            if device.type == "cuda":
                torch.cuda.empty_cache()
            progress.advance(task)
    return document.merged(kept, run) if run["results"] else kept, status


def _line(result: Mapping[str, Any], shown: Collection[str]) -> str:
    text = f"{result['op']} {result['phase']} {result['shape']}: floor {result['floor_s'] * 1e6:.1f}"
    chosen, found = result["auto"]["backend"], result["times"]
    text += f" | auto {chosen}"
    if chosen in found:
        least = min(compared(times) for times in found.values() if times["kind"] == "backend")
        text += f" ({compared(found[chosen]) / least:.2f})"
    for name, times in found.items():
        if name in shown:
            continue
        seconds = usual(times)
        text += f" | {name} {seconds * 1e6:.1f}"
        if times["kind"] == "backend":
            text += f" ({seconds / result['floor_s']:.2f}), host {times['host_s'] * 1e6:.0f}"
            text += f", called {compared(times) * 1e6:.1f}" if compared(times) != seconds else ""
        if "not_captured" in times:
            text += f" not captured: {times['not_captured']}"
    return text


if __name__ == "__main__":
    sys.exit(main())
