"""The objects that the binding keeps alive, and their visibility to the garbage collector."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import switchrail
from switchrail import Runtime, _core
from switchrail.errors import NameTakenError
from switchrail.ops import GatedDeltaBackend
from switchrail.staging import Staging

pytestmark = pytest.mark.usefixtures("small_heap")
LAYOUT = switchrail.Layout.from_kinds("tiny", ["gated_delta"])


def make_class(**attributes: Any) -> type[GatedDeltaBackend]:
    return type("Acme", (GatedDeltaBackend,), {"run": lambda self, *_, **__: "ran", **attributes})


def make_plan(runtime: Runtime) -> switchrail.BoundPlan:
    plan = runtime.plan(LAYOUT, device="cpu", dtype="float32", preferences={"gated_delta": "acme"})
    return runtime.bind(plan)


def test_cleared_objects_are_freed(runtime: Runtime) -> None:
    cls = make_class()
    gone = weakref.ref(cls)
    runtime.register("acme", cls, op="gated_delta")
    del cls
    gc.collect()
    assert gone() is not None
    runtime.clear("gated_delta", "acme")
    gc.collect()
    assert gone() is None


def test_uncommitted_objects_are_freed(runtime: Runtime) -> None:
    cls = make_class()
    gone = weakref.ref(cls)

    def fail(cls: type[GatedDeltaBackend]) -> None:
        with runtime.transaction() as registry:
            registry.register("acme", cls, op="gated_delta")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail(cls)
    runtime.register("acme", "acme:Acme", op="gated_delta")
    with pytest.raises(NameTakenError):
        runtime.register("acme", cls, op="gated_delta")
    staging = Staging(runtime._core, runtime.hooks, runtime._functions, {"kind": "user"})
    switchrail.Registry(staging).register("never", cls, op="gated_delta")
    del cls, staging
    gc.collect()
    assert gone() is None


def test_a_plan_keeps_its_instances(runtime: Runtime) -> None:
    runtime.register("acme", make_class(), op="gated_delta")
    plan = make_plan(runtime)
    instance = weakref.ref(plan.backend("gated_delta", "decode", 0))
    runtime.clear("gated_delta", "acme")
    for _ in range(3):
        gc.collect()
    assert plan.lookup("gated_delta", "decode", 0)() == "ran"
    assert instance() is not None
    del plan
    gc.collect()
    assert instance() is None


def test_a_cycle_through_a_runtime_is_collected() -> None:
    runtime = Runtime()
    cls = make_class(runtime=runtime)
    gone = weakref.ref(cls)
    runtime.register("acme", cls, op="gated_delta")
    core = weakref.ref(runtime)
    del runtime, cls
    gc.collect()
    assert (gone(), core()) == (None, None)


def test_a_cycle_through_a_plan_is_collected(runtime: Runtime) -> None:
    runtime.register("acme", make_class(), op="gated_delta")
    plan = make_plan(runtime)
    instance = plan.backend("gated_delta", "decode", 0)
    instance.plan_of_mine = plan
    gone = weakref.ref(instance)
    del plan, instance
    gc.collect()
    assert gone() is None


def test_a_cycle_through_an_open_transaction_is_collected() -> None:
    runtime = Runtime()
    registry = switchrail.Registry(
        Staging(runtime._core, runtime.hooks, runtime._functions, {"kind": "user"})
    )
    cls = make_class(registry=registry)
    gone = weakref.ref(cls)
    registry.register("acme", cls, op="gated_delta")
    del runtime, registry, cls
    gc.collect()
    assert gone() is None


def test_garbage_collections_during_registrations_empty_nothing(runtime: Runtime) -> None:
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for round_ in range(50):
            runtime.register("acme", make_class(round_=round_), op="gated_delta", override=True)
            plan = make_plan(runtime)
            assert plan.backend("gated_delta", "decode", 0).round_ == round_
            assert plan.lookup("gated_delta", "prefill", 0)() == "ran"
    finally:
        gc.set_threshold(*threshold)


def test_values_of_the_binding_are_frozen(runtime: Runtime) -> None:
    classes = [value for value in vars(_core).values() if isinstance(value, type)]
    assert len(classes) >= 12
    for cls in classes:
        with pytest.raises(TypeError):
            type("Sub", (cls,), {})
    for value in (LAYOUT, LAYOUT.layers[0], runtime.backend("gated_delta", "torch"), runtime._core):
        with pytest.raises(AttributeError):
            value.model = "other"
