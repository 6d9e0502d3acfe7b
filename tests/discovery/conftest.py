"""Finds the CPythons of this machine. Their `importlib.metadata` is compared with Switchrail's discovery."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ORACLE = Path(__file__).with_name("oracle.py")


class Oracle:
    """A process that returns the results of `importlib.metadata` for any `sys.path`."""

    def __init__(self, python: str) -> None:
        command = [python, "-E", "-s", str(ORACLE)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, paths: Sequence[str]) -> dict[str, Any]:
        """The `entries` and `versions` for a `sys.path`, or only an `error` if importlib raises one."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(list(paths)) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


def _interpreters() -> dict[str, str]:
    """One CPython for each minor version from 3.10 on, by version."""
    found = {f"3.{sys.version_info.minor}": sys.executable}
    for minor in range(10, 20):
        installed = sorted((Path.home() / ".pyenv" / "versions").glob(f"3.{minor}.*/bin/python3.{minor}"))
        for python in filter(None, [shutil.which(f"python3.{minor}"), *map(str, installed)]):
            probe = "import sys; print(sys.implementation.name, *sys.version_info[:2])"
            answer = subprocess.run([python, "-c", probe], capture_output=True, text=True).stdout
            if answer.split() == ["cpython", "3", str(minor)]:
                found.setdefault(f"3.{minor}", python)
    return found


@pytest.fixture(scope="session")
def oracles() -> Iterator[dict[str, Oracle]]:
    """An oracle for each CPython of this machine, including the running one, by version."""
    started = {version: Oracle(python) for version, python in _interpreters().items()}
    yield started
    for oracle in started.values():
        oracle.process.communicate()
