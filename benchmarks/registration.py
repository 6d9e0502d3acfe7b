"""Times a runtime with many backends: registering them, resolving a query among them, and clearing them.

Ten times as many backends should take about ten times as long.

    python benchmarks/registration.py [--json] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

from switchrail import Runtime

COUNTS = (1_000, 10_000)


def seconds(work: Callable[[], object]) -> float:
    """Wall time of a call of `work`, in seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measure(count: int) -> dict[str, float]:
    """Seconds of each part, for a new runtime with `count` backends."""
    runtime = Runtime()
    names = [f"backend-{number * 7919 % count:06}" for number in range(count)]

    def register() -> None:
        with runtime.transaction() as registry:
            for name in names:
                registry.register(name, f"acme:{name.replace('-', '_')}", op="gated_delta", priority=-1)

    def clear() -> None:
        with runtime.transaction() as registry:
            for name in names:
                registry.clear("gated_delta", name)

    parts = {
        "register": seconds(register),
        "resolve": seconds(lambda: runtime.resolve("gated_delta", "decode", device="cpu", dtype="float32")),
        "clear": seconds(clear),
    }
    assert [backend.name for backend in runtime.backends("gated_delta")] == ["reference", "torch"]
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    found: dict[int, dict[str, float]] = {}
    for count in COUNTS:
        rounds = [measure(count) for _ in range(arguments.rounds)]
        found[count] = {part: statistics.median(each[part] for each in rounds) for part in rounds[0]}
    if arguments.json:
        print(json.dumps(found))
        return
    for count, parts in found.items():
        told = ", ".join(f"{part} {taken * 1e3:,.1f} ms" for part, taken in parts.items())
        print(f"{count:>6,} backends: {told}")


if __name__ == "__main__":
    main()
