"""Measures the engine and its peers on a GPU, serving a slice of Qwen3-Next at real widths.

    python -m benchmarks.serving                              # 12 layers, 64 experts; B = 1, 32, 128, 256
    python -m benchmarks.serving --sglang PYTHON --arrivals 8 # also SGLang's engine, run by PYTHON
    python -m benchmarks.serving --sglang PYTHON --sglang-served
    python -m benchmarks.serving --sampled --vocabulary 151936
    python -m benchmarks.serving --layers 48 --experts 16 --batch 1 --batch 256 --host
    python -m benchmarks.serving --experts 512                # 40 GB of weights
    python -m benchmarks.serving --peer 1 --profile 32 --json FILE
    python -m benchmarks.serving --read FILE --plot docs/plots

The slice has hidden size 2,048, one attention layer after every three gated delta layers, 10 experts per
token and random bfloat16 weights. It serves B prompts of 200 to 600 tokens with 64 new tokens each, greedily
and, with `--sampled`, also at temperature 0.7 and top_p 0.9. *prefill* is the time of a run with one new
token each, *step* the additional time per further token, *tokens/s* new tokens divided by the whole time. All
are medians of runs that alternate with SGLang's, after one uncounted run.

`--arrivals`: prompts arrive at random times (a Poisson process) at 70% of the throughput of the largest
batch; prints milliseconds until the first token and between tokens. `--host`: host time of a decode step from
scheduling to launch, and for processing tokens. `--start`: seconds from process start to the first token,
measured twice. *compiled* counts compilations by Triton and torch.compile after `warm_up`. Before the timing,
a slice of four layers in float32 must give the same tokens with captured and with eager decodes;
`python -m benchmarks.accuracy` checks more.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import switchrail
import torch
import transformers
from switchrail.engine import Engine, SamplingParams
from switchrail.engine.warmup import warm_up

from benchmarks.arguments import make_parser
from benchmarks.compiles import counted
from benchmarks.serving import host, kernels, plots, runs, start, transformers_peer
from benchmarks.serving.ours import Ours
from benchmarks.serving.runs import Contender
from benchmarks.serving.sglang_peer import SGLang
from benchmarks.serving.slices import (
    LONG,
    TINY,
    WIDTHS,
    make_checkpoint,
    make_prompts,
    random_weights,
)
from benchmarks.serving.table import table

BATCHES = (1, 32, 128, 256)
SAMPLED = {"temperature": 0.7, "top_p": 0.9}

SERVED: dict[str, dict[str, Any]] = {
    "SGLang": {},
    "SGLang with Switchrail's kernels": {"linear_attn_backend": "switchrail"},
}
"""Further arguments of SGLang's engine, by the name of the contender."""

ROW = (
    "{name:12} B={batch:<4}{chosen} {prompt_tokens:7} prompt tokens  prefill {prefill_ms:8.1f} ms  "
    "step {step_ms:6.2f} ms  {tokens_per_second:8.0f} tokens/s"
)
LONG_ROW = "{name:12} one prompt of {prompt_tokens}: {prefill_ms:.1f} ms"
PEER = "{name:12} B={batch:<4} prefill {prefill_ms:8.1f} ms  step {step_ms:6.2f} ms"
ARRIVALS = (
    "{name:12} {requests} prompts, {requests_per_second:.1f} a second: first token {first_ms[p50]:.1f} ms, "
    "p99 {first_ms[p99]:.1f}; between tokens {between_ms[p50]:.2f} ms, p99 {between_ms[p99]:.2f}; "
    "{tokens_per_second:.0f} tokens/s"
)
HOST = (
    "host, B={batch:<4} to the launch {launch_ms:.3f} ms, results {results_ms:.3f} ms, "
    "step {step_ms:.2f} ms, p99 over median {p99_over_median:.2f}"
)


def check(folder: Path, device: str) -> None:
    """Compare captured decodes with eager ones, in float32.

    Raises:
        SystemExit: The tokens differ, or a decode could not be captured.
    """
    prompts = make_prompts(2, seed=1)
    params = SamplingParams(max_new_tokens=24, ignore_eos=True)
    found = []
    for capture in ("off", "all"):
        options = {"max_sequences": 2, "max_length": 1024, "capture": capture}
        with Engine(folder, dtype="float32", device=device, options=options) as engine:
            found.append([output.tokens for output in engine.generate(prompts, params)])
            reasons = [state.reason for state in engine.graphs if state.reason is not None]
            if reasons:
                raise SystemExit(f"not every decode could be captured: {reasons[0]}")
    if found[0] != found[1]:
        raise SystemExit("captured decodes give different tokens than eager ones")
    print("float32 tokens of captured decodes are those of eager ones", flush=True)


def show(rows: list[dict[str, Any]], row: dict[str, Any], line: str) -> None:
    """Store a row, and print its line."""
    rows.append(row)
    print(line.format(**row), flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("serving", __doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=3072)
    parser.add_argument("--batch", type=int, action="append", help="only this batch size; repeatable")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--capture", choices=("all", "decode", "off"), default="all")
    parser.add_argument("--compile", choices=("blocks", "off"), default="off")
    parser.add_argument("--options", type=json.loads, default={}, metavar="JSON", help="engine options")
    parser.add_argument("--rows", type=int, default=8192, help="maximum rows of one step")
    parser.add_argument("--sampled", action="store_true", help="also sample at temperature 0.7, top_p 0.9")
    parser.add_argument("--arrivals", type=float, metavar="SECONDS", help="also prompts at random times")
    parser.add_argument("--host", action="store_true", help="also the host time of a step")
    parser.add_argument("--start", action="store_true", help="also the start of a new process")
    parser.add_argument("--no-batches", action="store_true", help="without the batches and the long prompt")
    parser.add_argument(
        "--profile", type=int, action="append", default=[], metavar="B", help="also kernels of a decode of B"
    )
    parser.add_argument(
        "--peer", type=int, action="append", default=[], metavar="B", help="also transformers, with B prompts"
    )
    parser.add_argument("--sglang", metavar="PYTHON", help="also SGLang, run by this interpreter")
    parser.add_argument(
        "--sglang-options", type=json.loads, default={}, metavar="JSON", help="options of SGLang's engine"
    )
    parser.add_argument(
        "--sglang-served",
        action="store_true",
        help="also SGLang with Switchrail's kernels in its linear layers",
    )
    parser.add_argument("--sglang-log", type=Path, metavar="FILE", help="file for SGLang's output")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the results")
    parser.add_argument("--read", type=Path, metavar="FILE", help="measure nothing; use the results in FILE")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="draw the results (needs matplotlib)")
    parser.add_argument("--no-check", action="store_true", help="without the check of captured decodes")
    parser.add_argument("--tiny", action="store_true", help="a trial with small widths on a CPU")
    return parser.parse_args(arguments)


def time_all(
    options: argparse.Namespace, path: Path, scratch: Path, sizes: Sequence[int], device: str
) -> dict[str, Any]:
    """Measure Switchrail's engine on a checkpoint, and SGLang's if requested."""
    engine_options = {
        "max_sequences": max(sizes),
        "max_tokens_per_step": options.rows,
        "max_length": LONG + runs.NEW_TOKENS,
        "capture": options.capture,
        "compile": options.compile,
        **options.options,
    }
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        peers: list[Contender] = []
        log = options.sglang_log or scratch / "sglang.log"
        served = SERVED if options.sglang_served else {"SGLang": {}}
        for name, more in served.items() if options.sglang else ():
            sglang = stack.enter_context(
                SGLang(
                    path,
                    python=options.sglang,
                    sequences=max(sizes),
                    new_tokens=runs.NEW_TOKENS,
                    options={**options.sglang_options, **more},
                    log=log.with_stem(f"{log.stem}-{len(peers)}") if peers else log,
                    name=name,
                )
            )
            found |= {"sglang": sglang.version, "sglang_start_s": sglang.seconds}
            print(f"{name} {sglang.version}: {sglang.seconds:.1f} s from its start to a token", flush=True)
            peers.append(sglang)
        if options.start:
            found["start_s"] = [start.measure(path, device, engine_options) for _ in range(2)]
            for parts in found["start_s"]:
                told = ", ".join(f"{name} after {seconds:.1f} s" for name, seconds in parts.items())
                print(f"switchrail   a new process: {told}", flush=True)
        began = time.perf_counter()
        engine = stack.enter_context(Engine(path, device=device, options=engine_options))
        made = time.perf_counter()
        for _ in warm_up(engine):
            pass
        warm = time.perf_counter()
        print(f"engine made in {made - began:.1f} s, warmed up in {warm - made:.1f} s", flush=True)
        with counted() as compiles:
            found |= time_runs(options, Ours(engine), peers, sizes)
            if options.host:
                found["host"] = []
                for batch in sizes:
                    show(found["host"], host.measure(engine, batch), HOST)
        found["compiled"] = asdict(compiles)
        print(f"compiled after the warm-up: {found['compiled']}", flush=True)
        for batch in options.profile:
            kernels.show(engine, batch)
    return found


def time_runs(
    options: argparse.Namespace, ours: Ours, peers: Sequence[Contender], sizes: Sequence[int]
) -> dict[str, Any]:
    """Measure batches, a long prompt and arrivals."""
    contenders = [ours, *peers]
    found: dict[str, Any] = {name: [] for name in ("rows", "long", "arrivals")}
    if not options.no_batches:
        for sampling in ({}, SAMPLED) if options.sampled else ({},):
            for row in runs.batches(contenders, sizes, options.repeats, sampling):
                show(found["rows"], row, ROW)
        for row in runs.long_prompts(contenders, options.repeats):
            show(found["long"], row, LONG_ROW)
        print(table(found), flush=True)
    if options.arrivals:
        sampling = SAMPLED if options.sampled else {}
        for row in runs.arrivals(contenders, max(sizes), options.arrivals, sampling):
            show(found["arrivals"], row, ARRIVALS)
        loads = ours.loads
        found["loads"] = {
            "steps": len(loads),
            "running_p50": sorted(live for live, _ in loads)[len(loads) // 2],
            "running_max": max(live for live, _ in loads),
            "waiting_max": max(waiting for _, waiting in loads),
        }
        print(f"{ours.name:12} {found['loads']}", flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if options.read:
        document = json.loads(options.read.read_text())
        print(table(document))
    else:
        document = measure(options)
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    if options.plot:
        plots.draw(document, options.plot)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the requested measurements."""
    sizes = options.batch or ((1, 2) if options.tiny else BATCHES)
    device, widths = ("cpu", TINY) if options.tiny else ("cuda", WIDTHS)
    make = partial(make_checkpoint, widths=widths, device=device)
    document: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "switchrail": switchrail.__version__,
        **{name: getattr(options, name) for name in ("layers", "experts", "vocabulary", "repeats")},
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not options.no_check:
            check(make(folder / "check", 4, 16, 3072), device)
        stored = bool(options.sglang or options.start or options.peer)  # these read the files
        path = make(folder / "slice", options.layers, options.experts, options.vocabulary, stored=stored)
        with nullcontext() if stored else random_weights(device):
            document |= time_all(options, path, folder, sizes, device)
        gc.collect()
        torch.cuda.empty_cache()
        document["transformers_rows"] = []
        for row in transformers_peer.measure(path, options.peer, device) if options.peer else ():
            show(document["transformers_rows"], row, PEER)
    return document


if __name__ == "__main__":
    main()
