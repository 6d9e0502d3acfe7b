from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import switchrail
from switchrail import waiting
from switchrail.plugins import Plugin, attempt
from switchrail.testing import isolated
from switchrail.variables import VARIABLES
from switchrail.waiting import THREADS

Install = Callable[..., Path]
Find = Callable[[str], Plugin]

TARGET = """
import threading

go = threading.Event()  # set when the test is over, so that hanging threads end
seconds = 0.0  # the time of `Clock`

def hang():
    global seconds
    seconds += 1000
    go.wait(60)

def greet(name="world"):
    return f"hello {name}"
"""


def end_threads() -> None:
    """End the threads in which plugins of a test hang."""
    if "acme_target" in sys.modules:
        sys.modules["acme_target"].go.set()
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(THREADS)]
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


class Clock:
    """The time that plugins report in `acme_target.seconds`, which does not depend on the machine's load."""

    def monotonic(self) -> float:
        # The module may be half imported by another thread.
        return getattr(sys.modules.get("acme_target"), "seconds", 0.0)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clear Switchrail's variables; after the test, undo signal handlers and imports of fake distributions.

    Signal handlers that Python did not set are kept. Loads use the time of `Clock`.
    """
    for module in (waiting, attempt):
        monkeypatch.setattr(module, "time", Clock())
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    modules = set(sys.modules)
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in handlers.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)
    try:
        end_threads()
    finally:
        for name in set(sys.modules) - modules:
            if name.lower().startswith("acme"):
                del sys.modules[name]


@pytest.fixture
def runtime(environment: None) -> Iterator[switchrail.Runtime]:
    with isolated() as runtime:
        yield runtime
        end_threads()  # before this runtime ends, since the threads may use it


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Returns a function that installs a distribution on sys.path, and returns its metadata folder."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "acme_target.py").write_text(TARGET)
    monkeypatch.syspath_prepend(str(site))

    def install(
        distribution: str,
        code: str | bytes | None = "def register(registry): pass",
        *,
        version: str = "1.0",
        plugin: str | None = None,
        target: str | None = None,
        groups: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
    ) -> Path:
        module = distribution.replace("-", "_")
        contents = dict(files or {})
        if code is not None:
            contents[f"{module}.py"] = code.decode("latin-1") if isinstance(code, bytes) else code
        for name, text in contents.items():
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            is_bytes = isinstance(code, bytes) and name == f"{module}.py"
            (site / name).write_bytes(text.encode("latin-1" if is_bytes else "utf-8"))
        info = site / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        if groups is None:
            groups = {"switchrail.plugins": f"{plugin or distribution} = {target or f'{module}:register'}"}
        (info / "entry_points.txt").write_text("".join(f"[{group}]\n{groups[group]}\n" for group in groups))
        record = [*contents, *(os.path.join(info.name, file.name) for file in info.iterdir())]
        (info / "RECORD").write_text("".join(f"{name},,\n" for name in [*record, f"{info.name}/RECORD"]))
        return info

    return install


@pytest.fixture
def find(runtime: switchrail.Runtime) -> Callable[[str], Plugin]:
    """The record of a plugin, by its name or its qualified name."""

    def find(name: str) -> Plugin:
        [plugin] = [each for each in runtime.plugins if name in (each.name, each.qualified_name)]
        return plugin

    return find
