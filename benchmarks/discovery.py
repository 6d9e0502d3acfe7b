"""Time for a new process to find plugins among 600 distributions, including its imports.

All programs run in turn on the same folder, each in a new process. An empty program is listed for
comparison; all others must find the same number of plugins. `inside` is the wall time from before the first
import to the result, `cpu` the CPU time of the same part, and `process` the wall time of the whole process.
Stevedore, if installed, is measured without and with its cache file.

    python benchmarks/discovery.py [--json] [--rounds N]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DISTRIBUTIONS, PLUGINS, ROUNDS = 600, 6, 31
GROUP = "switchrail.plugins"
REQUIRED = 8  # the required speed relative to importlib.metadata

PREPARE = """
import sys
sys.path[:] = [path for path in sys.path if path.rpartition("/")[2] not in ("", "site-packages")] + [{site!r}]
from time import perf_counter, process_time
started, worked = perf_counter(), process_time()
"""
REPORT = """
print(perf_counter() - started, process_time() - worked, len(found))
"""
PROGRAMS = {
    "empty program": "found = ()",
    "switchrail": "from switchrail._core import discover; found = discover(sys.path).plugins",
    "importlib.metadata": f"from importlib import metadata; found = metadata.entry_points(group={GROUP!r})",
    "stevedore, no cache": f"from stevedore._cache import get_group_all; found = get_group_all({GROUP!r})",
    "stevedore, its cache": f"from stevedore._cache import get_group_all; found = get_group_all({GROUP!r})",
}


def make_site(site: Path) -> None:
    """Creates the metadata of 600 distributions. 6 have a plugin, about a third have other entry points."""
    for index in range(DISTRIBUTIONS):
        info = site / f"made_up_{index}-1.{index}.dist-info"
        info.mkdir()
        classifiers = "".join(f"Classifier: Topic :: Number {line}\n" for line in range(20))
        head = f"Metadata-Version: 2.4\nName: made-up-{index}\nVersion: 1.{index}\n{classifiers}\n"
        (info / "METADATA").write_text(head + "A description as long as they are.\n" * 200)
        (info / "RECORD").write_text(f"made_up_{index}/module.py,sha256=x,100\n" * 50)
        (info / "WHEEL").write_text("Wheel-Version: 1.0\n")
        if index % (DISTRIBUTIONS // PLUGINS) == 7:
            (info / "entry_points.txt").write_text(f"[{GROUP}]\nplugin-{index} = made_up_{index}:register\n")
        elif index % 3 == 0:
            (info / "entry_points.txt").write_text(
                f"[console_scripts]\ntool-{index} = made_up_{index}:main\n"
            )
    for package in ("switchrail", "stevedore"):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            (site / package).symlink_to(Path(spec.origin).parent)


def measure(name: str, site: Path, cache: Path) -> dict[str, float]:
    """Milliseconds of one run of a program, by kind of time."""
    if name == "stevedore, no cache":
        shutil.rmtree(cache, ignore_errors=True)
    program = PREPARE.format(site=str(site)) + PROGRAMS[name] + REPORT
    environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
    started = time.perf_counter()
    command = [sys.executable, "-s", "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    process = time.perf_counter() - started
    inside, cpu, found = map(float, run.stdout.split())
    if name != "empty program" and found != PLUGINS:
        raise AssertionError(f"{name} found {found} plugins of {PLUGINS}")
    return {"inside": inside * 1e3, "cpu": cpu * 1e3, "process": process * 1e3}


def spread(values: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = statistics.quantiles(values, n=4)
    return {"median": median, "low": low, "high": high}


def main() -> None:
    """Measures all programs; prints a table or a JSON document."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    names = [
        name
        for name in PROGRAMS
        if not name.startswith("stevedore") or importlib.util.find_spec("stevedore") is not None
    ]
    with tempfile.TemporaryDirectory() as folder:
        (site := Path(folder) / "site").mkdir()
        make_site(site)
        times: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for round_ in range(options.rounds + 1):
            for name in names:
                measured = measure(name, site, Path(folder) / "cache")
                if round_:  # the first round fills the system's caches
                    times[name].append(measured)
    results = {
        name: {kind: spread([each[kind] for each in measured]) for kind in measured[0]}
        for name, measured in times.items()
    }
    ratios = {
        kind: results["importlib.metadata"][kind]["median"] / results["switchrail"][kind]["median"]
        for kind in ("inside", "cpu")
    }
    if options.json:
        document = {
            "python": sys.version.split()[0],
            "distributions": DISTRIBUTIONS,
            "rounds": options.rounds,
            "milliseconds": results,
            "importlib_over_switchrail": ratios,
        }
        print(json.dumps(document, indent=2))
        return
    rounds = f"{options.rounds} rounds on Python {sys.version.split()[0]}"
    print(f"{DISTRIBUTIONS} distributions, {rounds}; milliseconds, median and quartiles")
    print(f"{'':22}" + "".join(f"{kind:26}" for kind in results["switchrail"]))
    for name, result in results.items():
        cells = [f"{at['median']:7.2f} ({at['low']:6.2f} {at['high']:6.2f})" for at in result.values()]
        print(f"{name:20}" + "".join(f"{cell:26}" for cell in cells))
    print(
        f"importlib.metadata takes {ratios['inside']:.1f} times as long as switchrail; "
        f"required: at least {REQUIRED}"
    )


if __name__ == "__main__":
    main()
