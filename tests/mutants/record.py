"""A pytest plugin that records the cost and the outcome of each test, one test per line.

    TEST_RECORD=FOLDER python -m pytest -p tests.mutants.record ...

A line is a JSON object: `test`, `outcome`, wall seconds (`wall`, and `setup`, `call`, `teardown`), CPU
seconds of this process (`own`) and of its children (`children`), and the number of children started
(`started`).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}


def children_seconds() -> float:
    """The CPU seconds of this process's children, and of the processes that these waited for.

    Includes children that are still running, such as the helper of `tests/processes.py`.
    """
    waited = os.times()
    total = waited.children_user + waited.children_system
    for listed in Path("/proc/self/task").glob("*/children"):
        for child in listed.read_text().split():
            with suppress(OSError):  # it may have ended
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


class Recorder:
    """Writes to a separate file in each of pytest's processes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"{os.getpid()}.jsonl").open("a")
        self._started = 0
        self._outcomes: dict[str, str] = {}
        self._walls: dict[str, float] = {}
        sys.addaudithook(self._count)

    def _count(self, event: str, arguments: Any) -> None:
        if event in STARTS:
            self._started += 1

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before, wall, started = os.times(), time.monotonic(), self._started
        children = children_seconds()
        self._outcomes.clear()
        self._walls.clear()
        result = yield
        after = os.times()
        bad = {each for each in self._outcomes.values() if each != "passed"}
        line = {
            "test": item.nodeid,
            "outcome": min(bad) if bad else "passed",
            "wall": time.monotonic() - wall,
            "own": after.user + after.system - before.user - before.system,
            "children": children_seconds() - children,
            "started": self._started - started,
            **self._walls,
        }
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._outcomes[report.when or ""] = report.outcome
        self._walls[report.when or ""] = report.duration


def pytest_configure(config: pytest.Config) -> None:
    """Record in the processes that run tests, not in the one that distributes them."""
    if "TEST_RECORD" in os.environ and getattr(config.option, "dist", "no") == "no":
        config.pluginmanager.register(Recorder(Path(os.environ["TEST_RECORD"])))
