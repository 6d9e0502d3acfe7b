"""Times SGLang with its own kernels and with Switchrail's, on a GPU.

    python -m benchmarks.sglang_times PYTHON --json FILE --plot docs/plots
    python -m benchmarks.sglang_times PYTHON --cache off --options '{"sampling_backend": "pytorch"}'

PYTHON is the interpreter of an environment with SGLang and Switchrail. The model is the slice of Qwen3-Next
that `benchmarks.serving` describes.

Three SGLang engines run at the same time: with SGLang's own kernels, with Switchrail's in linear layers, and
with Switchrail's in all layers. They take turns with the same prompts of 200 to 600 tokens; each run has new
prompts. All times are medians, after one uncounted run. The results name the gated delta and attention
kernels that each engine's log reports. `--options` are arguments of SGLang's engine, with their names in
SGLang 0.5.23 or in the installed version.
"""

from __future__ import annotations

import json
import re
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from benchmarks.arguments import make_parser
from benchmarks.figures import pyplot, save
from benchmarks.serving.sglang_peer import SGLang
from benchmarks.serving.slices import TINY, WIDTHS, Work, make_checkpoint, make_prompts

WAYS: dict[str, dict[str, Any]] = {
    "its own kernels": {},
    "ours in linear layers": {"linear_attn_backend": "switchrail"},
    "ours in all layers": {"linear_attn_backend": "switchrail", "attention_backend": "switchrail"},
}
CACHES: dict[str, dict[str, Any]] = {
    "off": {"max_mamba_cache_size": 300},
    "on": {
        "disable_radix_cache": False,
        "mamba_radix_cache_strategy": "extra_buffer",
        "max_mamba_cache_size": 1000,
    },
}
RUNS = {"prefill of 32": (32, 1), "prefill of 256": (256, 1), "64 tokens of 256": (256, 64)}
"""The number of prompts and of new tokens, by name."""

_KERNELS = re.compile(r"GDN kernel dispatcher: decode=(\w+), (?:extend|prefill)=(\w+)")
_OURS = re.compile(r"\b(gated_delta|attention) (prefill|decode) of layers [\d, ]+: backend (\w+)")
_ATTENTION = re.compile(r"attention_backend='(\w+)'")


def kernels_of(log: str) -> dict[str, str]:
    """The kernels that an engine's log names, by layer kind and phase."""
    found = {}
    if match := _KERNELS.search(log):
        found |= {"gated_delta decode": match[1], "gated_delta prefill": match[2]}
    if match := _ATTENTION.search(log):
        found["attention"] = match[1]
    ours = {f"{kind} {phase}": f"Switchrail's {name}" for kind, phase, name in _OURS.findall(log)}
    if "attention prefill" in ours:
        found.pop("attention", None)
    return found | ours


def measure(
    engines: Mapping[str, SGLang], runs: Mapping[str, tuple[int, int]], repeats: int
) -> Iterator[Any]:
    """Yields each run's name, each engine's name, and the seconds of the repeats."""
    for seed, (run, (count, new_tokens)) in enumerate(runs.items()):
        times: dict[str, list[float]] = {name: [] for name in engines}
        for repeat in range(repeats + 1):
            work = Work(make_prompts(count, seed=100 * seed + repeat + 10), new_tokens, {})
            order = [*engines.items()]
            for name, engine in order if repeat % 2 == 0 else reversed(order):
                seconds = engine.run(work)
                if repeat:
                    times[name].append(seconds)
        for name in engines:
            yield run, name, times[name]


def time_all(
    folder: Path, scratch: Path, python: str, cache: str, options: Mapping[str, Any], repeats: int
) -> list[dict[str, Any]]:
    """Measure all engines with the prefix cache on or off."""
    runs = RUNS if torch.cuda.is_available() else {"prefill of 2": (2, 1)}
    most = max(count for count, _ in runs.values())

    def start(way: str) -> SGLang:
        return SGLang(
            folder,
            python=python,
            sequences=most,
            new_tokens=64,
            options={"mem_fraction_static": 0.9, **options, **CACHES[cache], **WAYS[way]},
            log=scratch / f"{way}, cache {cache}.log",
            name=way,
        )

    rows: list[dict[str, Any]] = []
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        engines = {one.name: stack.enter_context(one) for one in pool.map(start, WAYS)}
        for run, name, times in measure(engines, runs, repeats):
            median = statistics.median(times)
            own = next((row["seconds"] for row in rows if row["run"] == run), median)
            rows.append(
                {
                    "cache": cache,
                    "run": run,
                    "name": name,
                    "seconds": median,
                    "times": times,
                    "kernels": kernels_of(
                        (scratch / f"{name}, cache {cache}.log").read_text(errors="replace")
                    ),
                    "sglang": engines[name].version,
                }
            )
            print(
                f"prefix cache {cache}, {run}, {name}: {1e3 * median:.1f} ms "
                f"({1e3 * min(times):.1f} to {1e3 * max(times):.1f}), {own / median:.3f} times "
                "as fast as with SGLang's own kernels",
                flush=True,
            )
    return rows


def label(row: Mapping[str, Any]) -> str:
    """The plot's name for an engine, with its kernels for gated delta layers."""
    names = dict.fromkeys(row["kernels"].get(f"gated_delta {phase}", "?") for phase in ("prefill", "decode"))
    return f"{row['name']}: {', '.join(names)}"


def draw(rows: Sequence[Mapping[str, Any]], device: str, folder: Path) -> Path:
    """Plot the medians and all times."""
    runs = list(dict.fromkeys(row["run"] for row in rows))
    caches = list(dict.fromkeys(row["cache"] for row in rows))
    figure, axes = pyplot().subplots(1, len(runs), figsize=(9.0, 3.0), layout="constrained", squeeze=False)
    for axis, run in zip(axes[0], runs, strict=True):
        for column, way in enumerate(WAYS):
            found = [row for row in rows if row["run"] == run and row["name"] == way]
            centres = [caches.index(row["cache"]) + 0.27 * (column - 1) for row in found]
            medians = [1e3 * row["seconds"] for row in found]
            axis.bar(centres, medians, 0.25, label=label(found[0]) if found else None)
            for x, row in zip(centres, found, strict=True):
                axis.plot([x] * len(row["times"]), [1e3 * s for s in row["times"]], "k.", markersize=2)
        axis.set(title=f"{run}, ms")
        axis.set_xticks(range(len(caches)), [f"prefix cache {cache}" for cache in caches])
        axis.grid(alpha=0.3, axis="y")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", frameon=False)
    figure.suptitle(f"SGLang {rows[0]['sglang']} on {device}", fontsize=9)
    return save(figure, folder, "sglang")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser("sglang_times", __doc__)
    parser.add_argument("python")
    parser.add_argument(
        "--cache", action="append", choices=CACHES, help="SGLang's prefix cache; default both"
    )
    parser.add_argument("--options", type=json.loads, default={}, metavar="JSON", help="SGLang's arguments")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="use this slice instead of a new one")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="folder for the engines' output")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the results")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="draw the results (needs matplotlib)")
    options = parser.parse_args(arguments)
    cuda = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if cuda else "a CPU"
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        logs = options.logs or scratch
        logs.mkdir(parents=True, exist_ok=True)
        sizes: Mapping[str, Any] = WIDTHS if cuda else TINY
        folder = options.checkpoint or make_checkpoint(
            scratch / "slice", 12, 64, 3072, widths=dict(sizes), device="cuda" if cuda else "cpu"
        )
        for cache in options.cache or CACHES:
            rows += time_all(folder, logs, options.python, cache, options.options, options.repeats)
            if options.json:
                document = {"device": device, "torch": torch.__version__, "rows": rows}
                options.json.write_text(json.dumps(document, indent=1) + "\n")
    if options.plot:
        draw(rows, device, options.plot)


if __name__ == "__main__":
    main()
