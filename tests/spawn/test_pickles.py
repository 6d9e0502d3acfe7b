"""Pickled names, decisions and registrations can be read without their plugin; configurations need it."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from switchrail import Layout, Runtime

PROGRAM = """
import pickle, sys
sys.path[:] = {path}
name, decision, registration, config = [pickle.loads(data) for data in pickle.load(sys.stdin.buffer)]
import switchrail
assert switchrail.current_runtime().plugins == ()
assert "torch" not in sys.modules
print(name, decision.chosen, decision.origin, registration.effective_config, registration.path, config)
"""
PLUGIN = """
from dataclasses import dataclass

@dataclass
class Config:
    scale: float = 1.0

def register(registry):
    registry.register("Acme.v2", "acme_value.kernel:No", op="gated_delta", config=Config(2.0), priority=5)
"""


def test_values_can_be_read_before_plugins_are_loaded(runtime: Runtime, install: Callable[..., Path]) -> None:
    site = str(install("acme-value", PLUGIN))
    runtime.load(["acme-value"], strict=True)
    runtime.configure("gated_delta", "Acme.v2", scale=4.5)
    import acme_value  # type: ignore[import-not-found]

    decision = runtime.resolve("gated_delta", "decode", device="cpu", dtype="float32")
    registration = runtime.backend("gated_delta", decision.chosen)
    values = [decision.chosen, decision, registration, acme_value.Config(3.0)]

    def read_by(path: list[str], values: list[object]) -> str:
        command = [sys.executable, "-c", PROGRAM.format(path=path)]
        data = pickle.dumps([pickle.dumps(value) for value in values])
        return subprocess.run(command, input=data, check=True, capture_output=True).stdout.decode().strip()

    expected = "Acme.v2 Acme.v2 plugin \"acme-value\" of acme-value 1.0 {'scale': 4.5} acme_value.kernel:No"
    assert read_by(sys.path, values) == f"{expected} Config(scale=3.0)"
    elsewhere = [path for path in sys.path if path != site]
    assert read_by(elsewhere, [*values[:3], registration.effective_config]) == f"{expected} {{'scale': 4.5}}"


def test_a_layout_and_its_routes(runtime: Runtime) -> None:
    layout = Layout.from_kinds("tiny", ["gated_delta", "full_attention"])
    assert pickle.loads(pickle.dumps(layout)) == layout
    decision = runtime.resolve("attention", "prefill", device="cuda", capability=(9, 0), dtype="bfloat16")
    assert pickle.loads(pickle.dumps(decision)) == decision
