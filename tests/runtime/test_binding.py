"""A plan is data; binding it to a runtime constructs its backends."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import switchrail
from switchrail.errors import BackendImportError, SchemaError, StalePlanError
from switchrail.ops.gated_delta.torch import TorchGatedDelta
from switchrail.runtime import Runtime

LAYOUT = switchrail.Layout.from_kinds("tiny", ["gated_delta", "full_attention"])


@dataclass(frozen=True)
class Scale:
    scale: float = 1.0


class Acme(TorchGatedDelta):
    built = 0

    def __init__(self, config: Any = None) -> None:
        Acme.built += 1
        super().__init__(config)


def make_plan(runtime: Runtime, name: str = "acme") -> switchrail.RoutePlan:
    return runtime.plan(LAYOUT, device="cpu", dtype="float32", preferences={"gated_delta": name})


def test_planning_constructs_nothing_and_binding_each_backend_once(runtime: Runtime) -> None:
    runtime.register("acme", Acme, op="gated_delta")
    Acme.built = 0
    plan = make_plan(runtime)
    assert Acme.built == 0
    bound = runtime.bind(plan)
    assert Acme.built == 1
    assert bound.plan is plan
    assert bound.backend("gated_delta", "decode", 0) is bound.backend("gated_delta", "prefill", 0)
    assert runtime.bind(plan).backend("gated_delta", "decode", 0) is not bound.backend(
        "gated_delta", "decode", 0
    )


def test_a_plan_names_the_registration_of_a_route(runtime: Runtime) -> None:
    runtime.register("acme", Acme, op="gated_delta")
    plan = make_plan(runtime)
    assert plan.lookup("gated_delta", "decode", 0) == runtime.backend("gated_delta", "acme")
    assert plan.lookup("attention", "prefill", 1).name == "torch"


def test_a_plan_pickles_and_binds_as_before(runtime: Runtime) -> None:
    runtime.register("acme", Acme, op="gated_delta")
    plan = make_plan(runtime)
    again = pickle.loads(pickle.dumps(plan))
    assert again == plan
    assert again.fingerprint == plan.fingerprint
    assert type(runtime.bind(again).backend("gated_delta", "decode", 0)) is Acme
    with pytest.raises(SchemaError, match="not a RoutePlan document"):
        switchrail.RoutePlan.from_json("{}")


def test_a_plan_of_another_process_binds_here(tmp_path: Path) -> None:
    program = """
import pickle, sys, switchrail
runtime = switchrail.Runtime()
for name in ("other", "acme"):  # so that acme gets a different id than in this process
    runtime.register(name, "switchrail.ops.gated_delta.torch:TorchGatedDelta", op="gated_delta")
layout = switchrail.Layout.from_kinds("tiny", ["gated_delta", "full_attention"])
plan = runtime.plan(layout, device="cpu", dtype="float32", preferences={"gated_delta": "acme"})
assert "torch" not in sys.modules
sys.stdout.buffer.write(pickle.dumps(plan))
"""
    found = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, check=True)
    plan = pickle.loads(found.stdout)
    runtime = Runtime()
    with pytest.raises(StalePlanError, match=r'gated_delta backend "acme".*under that name: nothing'):
        runtime.bind(plan)
    runtime.register("acme", "switchrail.ops.gated_delta.torch:TorchGatedDelta", op="gated_delta")
    assert type(runtime.bind(plan).backend("gated_delta", "decode", 0)) is TorchGatedDelta


def test_a_plan_whose_backend_was_changed_since_is_refused(runtime: Runtime) -> None:
    runtime.register("acme", Acme, op="gated_delta")
    plan = make_plan(runtime)
    runtime.clear("gated_delta", "acme")
    with pytest.raises(StalePlanError, match="make a new plan") as caught:
        runtime.bind(plan)
    assert (caught.value.op, caught.value.backend, caught.value.found) == ("gated_delta", "acme", ())
    runtime.register("acme", Acme, op="gated_delta", features=["raw_gates"])
    with pytest.raises(StalePlanError, match='registered under that name: "the user"') as caught:
        runtime.bind(plan)
    assert caught.value.found == ("the user",)
    assert isinstance(caught.value, LookupError)


def test_the_configuration_is_the_plans(runtime: Runtime) -> None:
    runtime.register("acme", Acme, op="gated_delta", config=Scale)
    plan = make_plan(runtime)
    runtime.configure("gated_delta", "acme", scale=2.0)
    assert runtime.bind(plan).backend("gated_delta", "decode", 0).config == Scale(1.0)
    assert runtime.bind(make_plan(runtime)).backend("gated_delta", "decode", 0).config == Scale(2.0)


def test_an_import_that_fails_says_whose_backend_it_is_and_the_ways_out(runtime: Runtime) -> None:
    runtime.register("acme", "acme_not_installed:Kernel", op="gated_delta")
    plan = make_plan(runtime)  # nothing is imported
    with pytest.raises(BackendImportError) as caught:
        runtime.bind(plan)
    message = str(caught.value)
    assert "'acme_not_installed:Kernel'" in message
    assert "registered by the user" in message
    assert "choose another backend with gated_delta=NAME" in message
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_an_error_of_an_import_whose_repr_fails_is_described(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme_unprintable.py").write_text(
        "class Unprintable(Exception):\n    def __repr__(self): raise ValueError\nraise Unprintable\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    runtime.register("acme", "acme_unprintable:Kernel", op="gated_delta")
    with pytest.raises(BackendImportError, match="failed: a Unprintable, whose repr raised ValueError"):
        runtime.bind(make_plan(runtime))
