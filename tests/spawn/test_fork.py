"""A forked child has its parent's runtime, including hooks without a name, and can continue to use it."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import switchrail
from switchrail import Runtime, RuntimeState, current, staging
from switchrail.hooks import imports
from switchrail.hooks.lock import change_lock
from switchrail.testing import isolated

from tests.forking import forked

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def test_a_child_has_everything(runtime: Runtime, install: Callable[..., Path], userland: Any) -> None:
    install("acme-one", "def register(registry): registry.register('one', 'a:One', op='kda')")
    runtime.load(["acme-one"])
    runtime.register("mine", "__main__:Mine", op="kda")
    runtime.hooks.add("userland.target", lambda value: ((value + 1,), {}))
    fingerprint = runtime.fingerprint()

    def work() -> None:
        assert switchrail.current_runtime() is runtime
        assert runtime.fingerprint() == fingerprint
        assert userland.target(1) == 2
        runtime.load(["acme-one"])
        runtime.register("more", "a:More", op="kda")
        assert runtime.fingerprint() != fingerprint

    forked(work)()
    assert runtime.fingerprint() == fingerprint
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        assert pool.submit(userland.report).result()["fingerprint"] == fingerprint


def test_a_child_can_load(runtime: Runtime, install: Callable[..., Path]) -> None:
    install("acme-one", "def register(registry): registry.register('one', 'a:One', op='kda')")

    def work() -> None:
        assert "loaded" in {plugin.state for plugin in runtime.load(["acme-one"])}
        assert runtime.backend("kda", "one").path == "a:One"

    forked(work)()
    assert "one" not in {backend.name for backend in runtime.backends("kda")}


def test_restoring_there_changes_nothing(runtime: Runtime) -> None:
    runtime.register("one", "a:One", op="kda")
    state = RuntimeState.of(runtime)

    def work() -> None:
        assert state.restore() is runtime

    forked(work)()


LOCKS = {
    "current": current._lock,
    "hooks": change_lock,
    "imports": imports._lock,
    "staging": staging._lock,
}


@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)
def test_a_fork_waits_until_no_thread_holds_a_lock(runtime: Runtime, lock: threading.RLock) -> None:
    """A fork waits while another thread holds a lock, since the child could never release it."""
    entered, go = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            entered.set()
            assert go.wait(60)

    def work() -> None:
        runtime.hooks.add("not_there_yet.function", print)
        RuntimeState.of(runtime).restore()

    holder = threading.Thread(target=hold)
    holder.start()
    assert entered.wait(60)
    threading.Timer(0.05, go.set).start()
    forked(work)()
    assert go.is_set()
    holder.join()


def test_a_plugin_that_forks_while_it_is_restored(
    runtime: Runtime,
    install: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A plugin may fork while a state is restored.

    With a timeout, the plugin runs in a separate thread, for which the restoring thread waits. So the fork
    must not wait for the restoring thread.
    """
    install(
        "acme-one",
        "import os\n"
        "def register(registry):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        os._exit(0)\n"
        "    os.waitpid(child, 0)\n",
    )
    monkeypatch.setenv("SWITCHRAIL_LOAD_TIMEOUT", "3600")  # longer than a test may take
    runtime.load(["acme-one"], strict=True)
    state = RuntimeState.of(runtime)
    assert capfd.readouterr().err == ""  # a failing child would print its error
    with isolated():
        assert state.restore().fingerprint() == state.fingerprint
