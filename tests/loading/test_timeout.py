"""With a timeout, what a plugin does for too long goes on without the runtime."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from switchrail import Runtime
from switchrail.errors import LoadReentryError, PluginError, TransactionClosedError
from switchrail.plugins import TIMEOUT, Plugin
from switchrail.plugins.attempt import THREADS

Install = Callable[..., Path]
Find = Callable[[str], Plugin]

LATE = """
import acme_target, switchrail
errors = []

def register(registry):
    registry.register("late", "a:L", op="kda")
    registry.hook("acme_target.greet", lambda name: (("late",), {}))
    acme_target.go.wait(20)
    runtime = switchrail.current_runtime()
    for attempt in (
        lambda: registry.register("later", "a:L", op="kda"),
        lambda: registry.hook("acme_target.greet", lambda name: (("later",), {})),
        lambda: switchrail.register("round", "a:L", op="kda"),
        lambda: switchrail.hook("acme_target.greet", lambda name: (("round",), {})),
        lambda: runtime.hooks.add("acme_target.greet", lambda name: (("hooks",), {})),
        runtime.hooks.clear,
        runtime.load,
    ):
        try:
            attempt()
        except Exception as error:
            errors.append(error)
"""


def end_threads() -> None:
    import acme_target

    acme_target.go.set()
    for thread in threading.enumerate():
        if thread.name.startswith(THREADS):
            thread.join(20)


def test_what_comes_after_the_time_is_refused(runtime: Runtime, install: Install, find: Find) -> None:
    import acme_target

    install("acme-late", LATE)
    install("acme-next", "def register(registry): registry.register('next', 'a:N', op='kda')")
    hook = runtime.hook("acme_target.greet", lambda result, name: result + "!", "after")
    start = time.monotonic()
    runtime.load(["acme-late", "acme-next"], timeout=0.5)
    assert 0.5 <= time.monotonic() - start < 15
    record = find("acme-late")
    assert record.state == "hung"
    assert record.reason == (
        "its function takes longer than 0.5 s; its thread goes on, and what it registers is refused"
    )
    assert "Stack of its thread (most recent call last):" in (record.traceback or "")
    assert "acme_target.go.wait(20)" in (record.traceback or "")
    assert find("acme-next").state == "loaded"
    before = runtime.fingerprint(), runtime._core.snapshot(), runtime.hooks.list()
    with pytest.raises(PluginError, match="its function takes longer"):
        runtime.load(["acme-late", "acme-next"], strict=True)
    end_threads()
    errors = sys.modules["acme_late"].errors
    assert [type(error) for error in errors] == [TransactionClosedError] * 6 + [LoadReentryError]
    assert "the transaction of plugin acme-late:acme-late is closed" in str(errors[2])
    assert (runtime.fingerprint(), runtime._core.snapshot(), runtime.hooks.list()) == before
    assert runtime.hooks.list() == (hook,)
    assert acme_target.greet() == "hello world!"
    assert find("acme-late") == record


def test_an_import_that_ends_too_late_does_not_count(runtime: Runtime, install: Install, find: Find) -> None:
    install(
        "acme-slow",
        "import acme_target, switchrail\nacme_target.go.wait(20)\n"
        "try: switchrail.register('slow', 'a:S', op='kda')\n"
        "except Exception as caught: error = caught\n"
        "calls = []\nregister = calls.append\n",
    )
    runtime.load(["acme-slow"], timeout=0.2)
    assert (find("acme-slow").state, (find("acme-slow").reason or "")[:11]) == ("hung", "its import ")
    end_threads()
    module = sys.modules["acme_slow"]
    assert isinstance(module.error, TransactionClosedError)
    assert runtime.load() == runtime.plugins
    assert module.calls == []
    assert find("acme-slow").state == "hung"


def test_the_time_is_that_of_import_and_function_together(
    runtime: Runtime, install: Install, find: Find
) -> None:
    install(
        "acme-half",
        "import time\ntime.sleep(0.6)\ndef register(registry):\n    time.sleep(0.6)\n",
    )
    install("acme-other", "import time\ntime.sleep(0.6)")
    runtime.load(["acme-half"], timeout=0.9)
    assert (find("acme-half").reason or "").startswith("its function takes longer than 0.9 s")


def test_what_is_in_time_loads_as_ever(
    runtime: Runtime, install: Install, find: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    import acme_target

    install(
        "acme-fast",
        "import switchrail, threading\n"
        "imported = threading.current_thread().name\n"
        "def register(registry):\n"
        "    switchrail.register('fast', 'a:F', op='kda')\n"
        "    registry.hook('acme_target.greet', lambda name: (('you',), {}))\n",
    )
    install("acme-exit", "raise SystemExit(3)")
    install("acme-again", "import switchrail\ndef register(registry): switchrail.load()")
    monkeypatch.setenv(TIMEOUT, "30")
    runtime.load()
    assert sys.modules["acme_fast"].imported == f"{THREADS}acme-fast:acme-fast"
    assert runtime.backend("kda", "fast").origin == 'plugin "acme-fast" of acme-fast 1.0'
    assert acme_target.greet() == "hello you"
    assert (find("acme-exit").state, find("acme-exit").reason) == ("failed", "SystemExit: 3")
    assert (find("acme-again").reason or "").startswith("LoadReentryError")


def test_a_plugin_that_waits_for_a_thread_that_loads_waits_for_itself(
    runtime: Runtime, install: Install, find: Find
) -> None:
    install(
        "acme-knot",
        "import switchrail, threading\n"
        "results = []\n"
        "def load(): results.append(switchrail.load())\n"
        "def register(registry):\n"
        "    global thread\n"
        "    thread = threading.Thread(target=load)\n"
        "    thread.start()\n"
        "    thread.join(20)\n",
    )
    plugins = runtime.load(["acme-knot"], timeout=0.5)
    assert find("acme-knot").state == "hung"
    module = sys.modules["acme_knot"]
    module.thread.join(20)
    [result] = module.results
    assert {plugin.name for plugin in result} == {plugin.name for plugin in plugins}
    assert find("acme-knot").state == "hung"
