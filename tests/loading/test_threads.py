"""Threads that load, register, hook, call, resolve and plan on one runtime at the same time."""

from __future__ import annotations

import random
import re
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import switchrail
from switchrail import Runtime
from switchrail.ops import GatedDeltaBackend

from tests.crew import bind_beside_writers
from tests.loading.conftest import Find, Install

PLUGINS = [f"acme-p{number}" for number in range(6)]

CODE = """
import threading
calls = []
here = threading.local()

def after(result, name):
    return f"{{result}} {name}"

def register(registry):
    calls.append(threading.get_ident())
    registry.register("{name}-one", "a:A", op="kda", priority=-1)
    registry.hook("acme_target.greet", after, "after")
    threads = [
        threading.Thread(target=registry.register, args=(f"{name}-t{{n}}", "a:T"), kwargs={{"op": "kda"}})
        for n in range(2)
    ]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    registry.register("{name}-two", "a:B", op="kda", priority=-1)
    {end}
"""

LAYOUT = switchrail.Layout.from_kinds("tiny", ["gated_delta"])


class Acme(GatedDeltaBackend):
    def run(self, *arguments: object) -> str:
        return "ran"


pytestmark = pytest.mark.usefixtures("switch_often")


class Crew:
    """Threads that start at the same time; their exceptions are collected."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.errors: list[BaseException] = []
        self._work: list[Callable[[random.Random], None]] = []

    def add(self, count: int, work: Callable[[random.Random], None]) -> None:
        self._work += [work] * count

    def run(self, writers: int) -> None:
        barrier = threading.Barrier(len(self._work))

        def run(number: int) -> None:
            try:
                barrier.wait(60)
                self._work[number](random.Random(number))
            except BaseException as error:
                self.errors.append(error)
                self.done.set()

        threads = [threading.Thread(target=run, args=(number,)) for number in range(len(self._work))]
        for thread in threads:
            thread.start()
        for thread in threads[:writers]:
            thread.join()
        self.done.set()
        for thread in threads[writers:]:
            thread.join()
        assert not any(thread.is_alive() for thread in threads)
        if self.errors:
            raise self.errors[0]


def test_sixteen_threads(runtime: Runtime, install: Install, find: Find) -> None:
    import acme_target

    for name in PLUGINS:
        install(name, CODE.format(name=name, end="pass"))
    install("acme-half", CODE.format(name="acme-half", end="raise OSError('half-way')"))
    names = [*PLUGINS, "acme-half"]
    rounds = 12
    crew = Crew()
    calls: list[str] = []
    versions = [0]
    steady = runtime.hook("acme_target.greet", lambda result, name: f"{result} steady", "after", priority=9)

    def check(text: str) -> str:
        """Check that a call ran no half transaction's hooks, no failed plugin's, and no plugin's twice."""
        words = text.split()
        assert words[:2] == ["hello", "world"]
        assert words.count("steady") == 1
        assert words.count("<") == words.count(">")
        assert "acme-half" not in words
        assert all(words.count(name) <= 1 for name in PLUGINS)
        return text

    def wait_for_readers() -> None:
        """Waits until a reader has seen the change, even if readers rarely get to run."""
        version, count = runtime._core.snapshot().version, len(calls) + 4  # three calls may have begun before
        while not crew.done.is_set() and (len(calls) < count or versions[-1] < version):
            time.sleep(0)

    def load(rng: random.Random) -> None:
        for _ in range(rounds):
            plugins = runtime.load(names) if rng.random() < 0.8 else runtime.discover()
            states = {plugin.name: plugin.state for plugin in plugins}
            if states["acme-half"] == "failed":  # another thread's load has ended
                words = set(check(acme_target.greet()).split())
                assert words >= set(PLUGINS)
                assert {states[name] for name in PLUGINS} == {"loaded"}

    def register(rng: random.Random) -> None:
        name = f"user{rng.random()}"
        for _ in range(rounds):
            with runtime.transaction() as registry:
                registry.register(name, Acme, op="gated_delta", priority=rng.randrange(3))
                registry.register(name, "u:U", op="kda")
                opens = registry.hook("acme_target.greet", lambda result, name: f"{result} <", "after")
                closes = registry.hook("acme_target.greet", lambda result, name: f"{result} >", "after")
            assert " <" in check(acme_target.greet())
            wait_for_readers()
            runtime.hooks.remove(opens, closes)
            with runtime.transaction() as registry:
                registry.clear("kda", name)
                registry.clear("gated_delta", name)
            wait_for_readers()

    def hook(rng: random.Random) -> None:
        mark = f"h{rng.random()}"
        for _ in range(rounds):
            hook = runtime.hooks.add("acme_target.greet", lambda result, name: f"{result} {mark}", "after")
            assert mark in check(acme_target.greet())
            runtime.hooks.disable(hook)
            assert mark not in check(acme_target.greet())
            runtime.hooks.enable(hook)
            assert mark in check(acme_target.greet())
            runtime.hooks.remove(hook)
            assert mark not in check(acme_target.greet())

    def call(rng: random.Random) -> None:
        greet = acme_target.greet
        while not crew.done.is_set():
            calls.append(check(greet()))
            assert steady in runtime.hooks.list("acme_target.greet")

    def resolve(rng: random.Random) -> None:
        while not crew.done.is_set():
            decision = runtime.resolve("gated_delta", "decode", device="cpu", dtype="float32")
            versions.append(decision.version)
            snapshot = runtime._core.snapshot()
            stacks = [backend for backend in snapshot.backends if backend.op in ("kda", "gated_delta")]
            users = [(b.op, b.name) for b in stacks if b.name.startswith("user")]
            assert {name for op, name in users if op == "kda"} == {name for op, name in users if op != "kda"}
            for name in names:
                own = [b.name for b in stacks if b.name.startswith(name)]
                assert len(own) in ((0,) if name == "acme-half" else (0, 4))
                if own:  # the plugin's hooks became active before
                    assert name in check(acme_target.greet())

    def plan(rng: random.Random) -> None:
        while not crew.done.is_set():
            bind_beside_writers(runtime, runtime.plan(LAYOUT, device="cpu", dtype="float32"), "decode")

    def look(rng: random.Random) -> None:
        while not crew.done.is_set():
            assert len(runtime.fingerprint()) == 64
            assert {plugin.state for plugin in runtime.plugins} <= {
                "discovered",
                "loaded",
                "failed",
                "blocked",
            }
            for hook in runtime.hooks.list():
                assert hook.target_name == "acme_target.greet"

    crew.add(3, load)
    crew.add(3, register)
    crew.add(2, hook)
    crew.add(3, call)
    crew.add(2, resolve)
    crew.add(2, plan)
    crew.add(1, look)
    snapshot = runtime._core.snapshot()
    crew.run(8)

    runtime.load(names)
    assert [find(name).state for name in PLUGINS] == ["loaded"] * len(PLUGINS)
    assert find("acme-half").state == "failed"
    modules = [sys.modules[name.replace("-", "_")] for name in names]
    assert [len(module.calls) for module in modules] == [1] * len(names)
    assert len({module.calls[0] for module in modules}) == 1  # one thread loaded them all
    expected = sorted([*PLUGINS, "user"])
    assert sorted(hook.source for hook in runtime.hooks.list()) == expected
    assert check(acme_target.greet()) == f"hello world {' '.join(reversed(PLUGINS))} steady"
    end = runtime._core.snapshot()
    own = [backend.name for backend in end.backends if re.match(r"acme-p\d", backend.name)]
    assert sorted(own) == sorted(f"{name}-{part}" for name in PLUGINS for part in ("one", "two", "t0", "t1"))
    assert len(end.backends) == len(snapshot.backends) + len(own)
    assert end.version == snapshot.version + len(PLUGINS) + 2 * 3 * rounds
    assert len(calls) > 100
    assert len(set(calls)) > 3
    assert len(set(versions)) > 20


def test_a_thread_that_asks_meanwhile_waits_for_the_result(
    runtime: Runtime, install: Install, find: Find
) -> None:
    install(
        "acme-slow",
        "import threading\n"
        "entered, go, calls = threading.Event(), threading.Event(), []\n"
        "def register(registry):\n"
        "    calls.append(1)\n"
        "    entered.set()\n"
        "    assert go.wait(60)\n"
        "    registry.register('slow', 'acme:Slow', op='gated_delta', priority=-1)\n",
    )
    results: list[Any] = []

    def load() -> None:
        plugins = runtime.load(["acme-slow"])
        results.append((plugins, "slow" in {b.name for b in runtime.backends()}))

    import acme_slow

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert acme_slow.entered.wait(60)
    assert results == []
    acme_slow.go.set()
    for thread in threads:
        thread.join()
    assert results == [(runtime.plugins, True)] * 4
    assert find("acme-slow").state == "loaded"
    assert acme_slow.calls == [1]
