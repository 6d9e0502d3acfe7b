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
names, FEATURES = ["one", "two", "three"], ["oot:a", "oot:b", "oot:c"]
for name in names if sys.argv[1] == "forwards" else reversed(names):
    runtime.register(name, f"acme_{name}:Acme", op="gated_delta", features=FEATURES, priority=-1)
layout = switchrail.Layout.from_kinds("tiny", ["gated_delta", "full_attention"])
plan = runtime.plan(layout, device="cpu", dtype="float32")
runtime.discover([])
print(runtime.fingerprint(plan), plan.fingerprint)
"""


def test_the_fingerprint_is_the_same_in_every_process() -> None:
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


def test_order_of_loading_does_not_count(install: Callable[..., Path]) -> None:
    digests = set()
    for name in ("acme-first", "acme-second"):
        install(name, "def register(registry): pass")
    for names in (["acme-first", "acme-second"], ["acme-second", "acme-first"]):
        runtime = Runtime()
        for name in names:
            runtime.load([name])
        digests.add(runtime.fingerprint())
    assert len(digests) == 1


def test_a_plugin_that_is_not_loaded_does_not_count(runtime: Runtime, install: Callable[..., Path]) -> None:
    plain = runtime.fingerprint()
    install("acme-plain", "def register(registry): pass")
    install("acme-broken", "raise OSError('no driver')")
    runtime.resolve("gated_delta", "decode", device="cpu", dtype="float32")  # discovers plugins
    assert {plugin.state for plugin in runtime.plugins} == {"discovered"}
    assert runtime.fingerprint() == plain
    runtime.load(["acme-broken"])
    assert {plugin.state for plugin in runtime.plugins} == {"failed", "blocked"}
    assert runtime.fingerprint() == plain
    runtime.load()
    assert {plugin.state for plugin in runtime.plugins} == {"failed", "loaded"}
    assert runtime.fingerprint() != plain


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
        "a plugin": lambda runtime: (
            install("acme-fp", "def register(registry): pass"),
            runtime.load(["acme-fp"]),
        ),
    }


def test_each_input_changes_the_fingerprint(
    runtime: Runtime, changes: dict[str, Callable[[Runtime], Any]]
) -> None:
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
