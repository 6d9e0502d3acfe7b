"""Makes one change and runs the tests that reach it, in a process forked after the large imports."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.mutants.mutations import Mutation, apply, find

BATCHES = (30, 150)
"""The numbers of tests after which the first two batches end; the third one has the other tests. Within a
batch, the tests of a file come one after another, to share fixtures."""


@dataclass(frozen=True)
class Trial:
    """A change, and the CPU seconds of each test that reaches it."""

    mutation: Mutation | None
    """The change to make; None to run the tests on unchanged code."""
    costs: dict[str, float]

    def in_order(self, seconds: float) -> list[str]:
        """The tests to run within this CPU time, at least one, in the order to run them.

        The fastest case of each function is chosen first, then the next ones. See `BATCHES` for the order.
        """
        functions = defaultdict(list)
        for test in sorted(self.costs, key=lambda each: (self.costs[each], each)):
            functions[test.partition("[")[0]].append(test)
        rounds: list[tuple[int, float, str]] = []
        for several in functions.values():
            rounds += [(number, self.costs[test], test) for number, test in enumerate(several)]
        order: list[str] = []
        spent = 0.0
        for _, cost, test in sorted(rounds):
            if order and spent + cost > seconds:
                continue
            spent += cost
            order.append(test)
        bounds = [0, *(each for each in BATCHES if each < len(order)), len(order)]
        batches = [order[first:last] for first, last in pairwise(bounds)]
        return [test for batch in batches for test in sorted(batch, key=lambda each: each.partition("::")[0])]


class Failures:
    """Remembers the failed tests and the files whose collection failed, and writes down which test runs."""

    def __init__(self, running: Path) -> None:
        self.tests: list[str] = []
        self._running = running

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running.write_text(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and report.nodeid not in self.tests:
            self.tests.append(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.tests.append(f"collecting {report.nodeid}")


def run_trials(
    trials: list[Trial], trees: list[Path], seconds: float
) -> Iterator[tuple[Trial, dict[str, Any]]]:
    """Yields each trial's outcome when it ends. Each copy of the repository in `trees` runs one at a time."""
    prepare()
    free, running = list(trees), {}
    waiting = list(reversed(trials))
    try:
        while waiting or running:
            while waiting and free:
                tree, trial = free.pop(), waiting.pop()
                tests = trial.in_order(seconds)
                (tree / "running").write_text("before the tests")
                limit = time.monotonic() + 120 + 6 * sum(trial.costs[each] for each in tests)
                running[start(trial, tree, tests)] = (trial, tree, time.monotonic(), limit)
            for process, (trial, tree, began, limit) in list(running.items()):
                ended, status = os.waitpid(process, os.WNOHANG)
                is_late = time.monotonic() > limit
                if not ended and not is_late:
                    continue
                if not ended:
                    os.killpg(process, signal.SIGKILL)
                    os.waitpid(process, 0)
                del running[process]
                free.append(tree)
                yield trial, outcome(tree, status, time.monotonic() - began)
            time.sleep(0.05)
    finally:
        for process in running:
            os.killpg(process, signal.SIGKILL)


def prepare() -> None:
    """Import large packages here, once for all forked processes, but none of Switchrail's."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import pytest  # noqa: F401
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
    if importlib.util.find_spec("triton"):
        import triton.language  # noqa: F401
    import hypothesis  # noqa: F401
    import transformers
    import transformers.masking_utils

    transformers.Qwen3NextForCausalLM  # noqa: B018


def start(trial: Trial, tree: Path, tests: list[str]) -> int:
    """Fork a process that makes the change in a copy, runs the tests and undoes the change; return its id."""
    process = os.fork()
    if process:
        return process
    os.setpgid(0, 0)
    try:
        with changed(trial.mutation, tree):
            output = os.open(tree / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            run_tests(tree, tests, ["-x"] if trial.mutation else [])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


@contextmanager
def changed(mutation: Mutation | None, tree: Path) -> Iterator[None]:
    """Make the change in a copy of the repository; undo it when the context ends."""
    if mutation is None:
        yield
        return
    path = tree / mutation.file
    source = path.read_text()
    path.write_text(apply(source, mutation, find(mutation.file, source)[mutation]))
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
    try:
        yield
    finally:
        path.write_text(source)


def run_tests(tree: Path, tests: list[str], options: list[str]) -> None:
    """Run tests with a copy's packages, and write exit code and failed tests to the copy's file `outcome`."""
    import pytest

    paths = [str(tree / name) for name in ("python", "kernels")]
    os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    os.chdir(tree)
    sys.dont_write_bytecode = True
    root = str(Path(__file__).parents[2])
    sys.path[:] = [*paths, *(each for each in sys.path if each not in ("", root))]
    for name in [each for each in sys.modules if each == "tests" or each.startswith("tests.")]:
        del sys.modules[name]
    failures = Failures(tree / "running")
    code = 1
    try:
        own = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", "60"]
        code = int(pytest.main([*own, *options, *tests], plugins=[failures]))
    finally:  # leftovers of a failed test may cause an error at the end of the session
        (tree / "outcome").write_text(json.dumps([code, failures.tests]))


def outcome(tree: Path, status: int, wall: float) -> dict[str, Any]:
    """The outcome of the process: whether a test noticed the change, and which one.

    A crash counts as noticed, by the test during which the process crashed. If the process was killed for
    taking too long, the outcome is "unfinished".
    """
    written = tree / "outcome"
    if not written.exists():
        signal_number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        is_crash = signal_number not in (0, signal.SIGKILL)
        found = ("killed", (tree / "running").read_text()) if is_crash else ("unfinished", "")
    else:
        code, failed = json.loads(written.read_text())
        written.unlink()
        found = ("survived" if code == 0 else "killed" if failed else f"error {code}", "\n".join(failed))
    return {"outcome": found[0], "test": found[1], "wall": round(wall, 1)}
