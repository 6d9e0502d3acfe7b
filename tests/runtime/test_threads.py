"""Threads that register, withdraw, plan, resolve and look up at the same time."""

from __future__ import annotations

import random
import threading
import time

import pytest
import switchrail
from switchrail import Runtime, _core
from switchrail.errors import ConflictError, NameTakenError, SwitchrailError
from switchrail.ops import GatedDeltaBackend

from tests.crew import bind_beside_writers, run_watched

LAYOUT = switchrail.Layout.from_kinds("tiny", ["gated_delta"])
SPEC = {
    "op": "gated_delta",
    "phases": ["prefill", "decode"],
    "path": "acme:Acme",
    "devices": [("cpu", None, None)],
    **{
        name: []
        for name in (
            "dtypes",
            "state_dtypes",
            "head_sizes",
            "page_sizes",
            "state_layouts",
            "features",
            "packages",
        )
    },
    "config": {},
}


class Acme(GatedDeltaBackend):
    def run(self, *arguments: object) -> str:
        return "ran"


pytestmark = pytest.mark.usefixtures("switch_often")


def test_nothing_is_lost_and_no_read_is_torn(runtime: Runtime) -> None:
    core, rounds, writers, readers = runtime._core, 300, 8, 8
    start = core.snapshot()
    commits: list[_core.Commit] = []
    decisions: list[_core.Decision] = []
    refused: list[str] = []
    errors: list[BaseException] = []
    latest = [0]
    done = threading.Event()
    barrier = threading.Barrier(writers + readers)

    def write(writer: int) -> None:
        rng = random.Random(writer)
        for round in range(rounds):
            name = f"acme{rng.randrange(6)}"
            transaction = core.begin({"kind": "user"})
            try:
                stack = core.stack("gated_delta", name)
                if stack and rng.random() < 0.5:
                    transaction.withdraw(rng.choice(stack))
                else:
                    spec = {**SPEC, "name": name, "priority": rng.randrange(3)}
                    implementation = switchrail.implementation.Implementation(Acme, None)
                    transaction.add(spec, implementation, rng.random() < 0.5)
                commits.append(transaction.commit())
            except (NameTakenError, ConflictError):
                refused.append(name)
            if round % 4 == 0:
                wait_for_readers()

    def wait_for_readers() -> None:
        """Waits until a reader has seen the registry's current version, even if readers rarely get to run."""
        version = core.snapshot().version
        while not errors and latest[0] < version:
            time.sleep(0)

    def read() -> None:
        while not done.is_set():
            plan = runtime.plan(LAYOUT, device="cpu", dtype="float32")
            decisions.extend(plan.decisions)
            if not bind_beside_writers(runtime, plan, "prefill"):
                continue
            decisions.append(runtime.resolve("gated_delta", "decode", device="cpu", dtype="float32"))
            latest[0] = decisions[-1].version

    def run(work: object, *args: object) -> None:
        try:
            barrier.wait(60)
            work(*args)  # type: ignore[operator]
        except BaseException as error:
            errors.append(error)

    reading = [threading.Thread(target=run, args=(read,)) for _ in range(readers)]
    writing = [threading.Thread(target=run, args=(write, writer)) for writer in range(writers)]
    run_watched(writing, reading, done)
    assert errors == []
    assert refused

    states = {start.version: start}
    for commit in sorted(
        (commit for commit in commits if commit.to_dict()["changes"]), key=lambda c: c.version
    ):
        states[commit.version] = states[commit.version - 1].apply(commit)
    end = core.snapshot()
    assert states[max(states)] == end
    assert end.version - start.version == len(states) - 1 > rounds
    assert len(decisions) > 100
    assert len({decision.version for decision in decisions}) > 50
    for decision in decisions:
        op = decision.op
        there = {backend.id for backend in states[decision.version].backends if backend.op == op}
        document = decision.to_dict()
        named = [document["chosen"]["id"], *(entry["backend"]["id"] for entry in document["rejected"])]
        assert len(named) == len(there)
        assert set(named) == there
    objects = [core.object(backend.id) for backend in end.backends]
    assert None not in objects
    assert len(objects) >= 6


def test_one_of_many_threads_gets_a_name(runtime: Runtime) -> None:
    results: list[str] = []
    barrier = threading.Barrier(8)

    def register() -> None:
        barrier.wait(60)
        try:
            runtime.register("acme", Acme, op="gated_delta")
            results.append("registered")
        except SwitchrailError as error:
            results.append(type(error).__name__)

    threads = [threading.Thread(target=register) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results.count("registered") == 1
    assert set(results) <= {"registered", "NameTakenError", "ConflictError"}


def test_the_default_runtime_is_made_once() -> None:
    before = switchrail.current.swap_current(None)
    try:
        found: list[Runtime] = []
        barrier = threading.Barrier(8)

        def ask() -> None:
            barrier.wait(60)
            found.append(switchrail.current_runtime())

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 8
        assert len({id(runtime) for runtime in found}) == 1
    finally:
        switchrail.current.swap_current(before)
