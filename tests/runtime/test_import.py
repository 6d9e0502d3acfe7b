from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import switchrail
from switchrail.testing import isolated

PROGRAM = """
import json, sys
import switchrail

runtime = switchrail.current_runtime()
runtime.register("acme", "acme:Acme", op="gated_delta")
runtime.resolve("gated_delta", "decode", device="cpu", dtype="float32")
runtime.discover()
switchrail.Layout.from_kinds("tiny", ["gated_delta"])
runtime.fingerprint()
print(json.dumps(sorted(sys.modules)))
"""


def test_the_package_is_light() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    loaded = json.loads(run.stdout)
    assert "switchrail._core" in loaded
    heavy = {"torch", "transformers", "triton", "numpy", "pydantic", "safetensors", "switchrail_kernels"}
    assert heavy.isdisjoint(loaded)


def test_every_public_name_is_there() -> None:
    assert len(switchrail.__all__) > 10
    with isolated():
        for name in switchrail.__all__:
            assert getattr(switchrail, name) is not None


def test_a_name_that_is_not_there() -> None:
    module: Any = switchrail
    with pytest.raises(AttributeError, match="'Engin'"):
        module.Engin  # noqa: B018
