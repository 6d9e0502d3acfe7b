from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import switchrail
from switchrail import Runtime

PROGRAM = """
import sys
import switchrail

runtime = switchrail.Runtime()
names = ["one", "two", "three"]
for name in names if sys.argv[1] == "forwards" else reversed(names):
    runtime.register(name, f"acme_{name}:Acme", op="gated_delta", features=["a", "b", "c"], priority=-1)
layout = switchrail.Layout.from_kinds("tiny", ["gated_delta", "full_attention"])
plan = runtime.plan(layout, device="cpu", dtype="float32")
runtime.discover([])
print(runtime.fingerprint(plan), plan.fingerprint)
"""


def test_it_is_the_same_in_every_process() -> None:
    outputs = set()
    for seed, order in (("0", "forwards"), ("12345", "backwards")):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", PROGRAM, order]
        outputs.add(
            subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        )
    assert len(outputs) == 1
    [text] = outputs
    assert [len(digest) for digest in text.split()] == [64, 64]


def test_order_of_installation_does_not_count(tmp_path: Path) -> None:
    digests = set()
    for folder, names in (("one", ["acme", "bolt"]), ("two", ["bolt", "acme"])):
        for name in names:
            info = tmp_path / folder / f"{name}-1.0.dist-info"
            info.mkdir(parents=True)
            (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
            (info / "entry_points.txt").write_text(f"[switchrail.plugins]\n{name} = {name}:register\n")
        runtime = Runtime()
        assert len(runtime.discover([tmp_path / folder])) == 2
        digests.add(runtime.fingerprint())
    assert len(digests) == 1


@dataclass
class Settings:
    scale: float = 1.0


@pytest.fixture
def changes(install: Callable[..., Path]) -> dict[str, Callable[[Runtime], Any]]:
    return {
        "a backend": lambda runtime: runtime.register("acme", "acme:Acme", op="gated_delta", priority=-1),
        "an override": lambda runtime: runtime.register(
            "reference", "a:B", op="gated_delta", override=True, priority=-100
        ),
        "its defaults": lambda runtime: runtime.register(
            "acme", "acme:Acme", op="gated_delta", priority=-1, config=Settings, override=True
        ),
        "a configuration": lambda runtime: runtime.configure("gated_delta", "acme", scale=2.0),
        "a hook": lambda runtime: runtime.hooks.add("textwrap.dedent", lambda text: None, "before"),
        "a plugin": lambda runtime: (install("acme-fp", "def register(registry): pass"), runtime.discover()),
        "a loaded plugin": lambda runtime: runtime.load(["acme-fp"]),
    }


def test_each_input_changes_it(runtime: Runtime, changes: dict[str, Callable[[Runtime], Any]]) -> None:
    seen = [runtime.fingerprint()]
    for name, change in changes.items():
        change(runtime)
        assert runtime.fingerprint() not in seen, name
        seen.append(runtime.fingerprint())
    layout = switchrail.Layout.from_kinds("tiny", ["gated_delta"])
    plan = runtime.plan(layout, device="cpu", dtype="float32")
    other = runtime.plan(layout, device="cpu", dtype="float32", phases=["decode"])
    assert len({*seen, runtime.fingerprint(plan), runtime.fingerprint(other)}) == len(seen) + 2
    assert plan.fingerprint != other.fingerprint
    assert runtime.fingerprint() == seen[-1]
