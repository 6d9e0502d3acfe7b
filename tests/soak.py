"""Runs tests repeatedly, in random order, while other processes keep the cores busy.

The cores are divided into lanes. Each lane has its own busy processes and runs rounds until all are done. A
round is one run of pytest with its own seed. Its seed, result, duration and log file are printed.

    python tests/soak.py --rounds 3                      # all tests
    python tests/soak.py --rounds 50 --racing            # tests that race (see tests/racing.py)
    python tests/soak.py --rounds 50 --racing --sampled  # interrupts at as few places as `make test`
    python tests/soak.py --rounds 10 tests/hooks -k race # any arguments of pytest
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.racing import racing

TESTS = Path(__file__).parent


@contextmanager
def busy(cores: set[int], count: int) -> Iterator[None]:
    """Keep cores busy with processes that compute."""
    with ExitStack() as stack:
        for _ in range(count):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(process.kill)
            os.sched_setaffinity(process.pid, cores)
        yield


def run(seed: int, cores: set[int], arguments: Sequence[str], log: Path, sampled: bool) -> int:
    """Run pytest once, on some cores, in the random order of a seed."""
    # see tests/interleaving.py and tests/engine/test_interrupts.py
    places = {} if sampled else {"SWITCH_EVERY": "1", "INTERRUPT_EVERY": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(len(cores))]
    command += ["-p", "no:cacheprovider", "--random-order", f"--random-order-seed={seed}"]
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, *arguments],
            cwd=TESTS.parent,
            env=os.environ | places,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        os.sched_setaffinity(process.pid, cores)
        return process.wait()


def main() -> int:
    """Return 1 if a round failed, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--racing", action="store_true", help="only tests with threads, processes, signals or OrderError"
    )
    parser.add_argument(
        "--sampled", action="store_true", help="interrupt and switch threads at some places, not at every one"
    )
    parser.add_argument("--busy", type=int, default=4, help="busy processes beside each lane")
    parser.add_argument("--lane", type=int, default=2, help="cores per lane, and pytest processes")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="seed of the first round")
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()) / "switchrail-soak")
    options, arguments = parser.parse_known_args()
    arguments += racing() if options.racing else []
    options.logs.mkdir(parents=True, exist_ok=True)
    cores = sorted(os.sched_getaffinity(0))
    lanes = [set(cores[at : at + options.lane]) for at in range(0, len(cores), options.lane)]
    seeds = iter(range(options.seed, options.seed + options.rounds))
    taking = threading.Lock()
    failed: list[int] = []

    def work(lane: set[int]) -> None:
        with busy(lane, options.busy):
            while True:
                with taking:
                    seed = next(seeds, None)
                if seed is None:
                    return
                log, start = options.logs / f"{seed}.log", time.monotonic()
                code = run(seed, lane, arguments, log, options.sampled)
                last = (log.read_text().splitlines() or [""])[-1]
                print(f"seed {seed}: {last} ({time.monotonic() - start:.0f} s, {log})", flush=True)
                if code:
                    failed.append(seed)

    threads = [threading.Thread(target=work, args=(lane,)) for lane in lanes[: options.rounds]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{options.rounds - len(failed)} of {options.rounds} rounds passed; failed: {sorted(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
