"""CPU seconds of Switchrail's commands, next to those of programs that only import packages.

Commands and programs run in turn, each in a new process; the medians are printed. CPU time is used because
other load on the machine affects it less than wall time. A command that fails ends the benchmark.

    python benchmarks/commands.py [--json] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

CHECKPOINT = str(Path(__file__).parents[1] / "tests" / "checkpoints" / "kjv-qwen3-next")
COMMANDS = {
    "--version": ["--version"],
    "--help": ["--help"],
    "plugins": ["plugins"],
    "backends": ["backends"],
    "run --help": ["run", "--help"],
    "explain": ["explain", CHECKPOINT, "--device", "cpu", "--layer", "0"],
    "plan": ["plan", CHECKPOINT, "--device", "cpu"],
    "run, 2 tokens": ["run", CHECKPOINT, "--device", "cpu", "--prompt", "And", "--max-new-tokens", "2"],
}
PROGRAMS = {
    "empty program": "pass",
    "import typer, rich.table": "import typer, rich.table",
    "import torch": "import torch",
    "import transformers' qwen3_next": "import transformers.models.qwen3_next.modeling_qwen3_next",
}


def cpu_seconds(arguments: list[str]) -> float:
    """User and system time of a Python process and its children."""
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{arguments} failed:\n{errors}")
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measures the commands and programs, and prints the medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    contestants = {name: ["-c", program] for name, program in PROGRAMS.items()}
    contestants |= {f"switchrail {name}": ["-m", "switchrail", *rest] for name, rest in COMMANDS.items()}
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(options.rounds + 1):
        for name, arguments in contestants.items():
            taken[name].append(cpu_seconds(arguments))
    medians = {name: statistics.median(times[1:]) for name, times in taken.items()}  # round 1 fills caches
    if options.json:
        print(json.dumps(medians, indent=2))
        return
    for name, seconds in medians.items():
        print(f"{name:<34}{seconds:8.2f} CPU s")


if __name__ == "__main__":
    main()
