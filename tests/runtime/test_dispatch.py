from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import switchrail
import torch
from switchrail import Runtime
from switchrail.errors import (
    LayerTypeError,
    LayoutError,
    NoBackendError,
    NoRouteError,
    SwitchrailError,
    UnknownLayerError,
    UnknownOpError,
    UnknownPhaseError,
)
from switchrail.ops import AttentionBackend, GatedDeltaBackend

KINDS = ["gated_delta", "gated_delta", "gated_delta", "full_attention"] * 2
LINEAR, FULL = (0, 1, 2, 4, 5, 6), (3, 7)


class Linear(GatedDeltaBackend):
    def run(self, *args: Any, **kwargs: Any) -> Any:
        return "linear", args, kwargs


class Full(AttentionBackend):
    def run(self, *args: Any, **kwargs: Any) -> Any:
        return "full", args, kwargs


@pytest.fixture
def make_plan(runtime: Runtime) -> Callable[..., switchrail.BoundPlan]:
    runtime.register("linear", Linear, op="gated_delta")
    runtime.register("full", Full, op="attention")

    def make(kinds: list[str] = KINDS, **arguments: Any) -> switchrail.BoundPlan:
        layout = switchrail.Layout.from_kinds("tiny", kinds)
        plan = runtime.plan(layout, **{"device": "cpu", "dtype": torch.float32, **arguments})
        return runtime.bind(plan)

    return make


def test_each_layer_is_dispatched_to_its_backend(make_plan: Any) -> None:
    plan = make_plan()
    for phase in ("prefill", "decode"):
        for layer in LINEAR:
            assert plan.lookup("gated_delta", phase, layer)(1, a=2) == ("linear", (1,), {"a": 2})
            assert type(plan.backend("short_conv", phase, layer)).__name__ == "TorchShortConv"
        for layer in FULL:
            assert plan.lookup("attention", phase, layer)(1, a=2) == ("full", (1,), {"a": 2})
    assert len({id(plan.backend("gated_delta", "decode", layer)) for layer in LINEAR}) == 1
    assert plan.plan.table[:2] == [
        (0, "short_conv", "prefill", "torch"),
        (0, "short_conv", "decode", "torch"),
    ]
    assert len(plan.plan.table) == 2 * (2 * len(LINEAR) + len(FULL))


def test_all_ways_to_name_a_layer_agree(make_plan: Any) -> None:
    plan = make_plan()
    expected = plan.lookup("gated_delta", "decode", 2)
    assert plan.lookup("gated_delta", "decode", layer_id=2) is expected
    assert plan.lookup("gated_delta", "decode", layer=SimpleNamespace(layer_id=2)) is expected
    assert plan.lookup("gated_delta", "decode", layer=SimpleNamespace(layer_idx=2)) is expected
    assert plan.lookup(phase="decode", op="gated_delta", layer_id=2) is expected
    assert plan.lookup("".join(["gated_", "delta"]), "".join(["de", "code"]), 2) is expected


def test_the_objects_own_id_wins(make_plan: Any) -> None:
    plan = make_plan()
    layer = SimpleNamespace(layer_id=2, layer_idx=3)
    assert plan.lookup("gated_delta", "decode", 3, layer)() == ("linear", (), {})
    with pytest.raises(NoRouteError, match="layer 3 of tiny"):
        plan.lookup("gated_delta", "decode", 2, SimpleNamespace(layer_id=3))
    with pytest.raises(LayerTypeError, match="True"):
        plan.lookup("gated_delta", "decode", 2, SimpleNamespace(layer_id=True))
    assert plan.lookup("gated_delta", "decode", 2, SimpleNamespace(layer_id=None)) is not None


class RadixAttention(torch.nn.Module):
    """A layer whose kind follows from its id only, not from its class's name or its attributes."""

    def __init__(self, layer_id: int) -> None:
        super().__init__()
        self.layer_id = layer_id


def test_class_and_markers_never_matter(make_plan: Any) -> None:
    plan = make_plan()
    linear, full = RadixAttention(2), RadixAttention(3)
    full._is_linear_attention = True  # type: ignore[assignment]
    linear.is_full_attention = True  # type: ignore[assignment]
    assert plan.lookup("gated_delta", "decode", layer=linear)()[0] == "linear"
    assert plan.lookup("attention", "decode", layer=full)()[0] == "full"
    with pytest.raises(NoRouteError, match="full_attention"):
        plan.lookup("gated_delta", "decode", layer=full)


@pytest.mark.parametrize(
    "layer_id",
    [True, False, "3", 3.0, None, numpy.int64(3), torch.tensor(3), [3]],
    ids=lambda value: repr(value),
)
def test_invalid_ids_are_refused(make_plan: Any, layer_id: Any) -> None:
    plan = make_plan()
    for call in (plan.lookup, plan.backend, plan.plan.lookup):
        with pytest.raises(LayerTypeError, match=r"tiny: 0 to 7") as caught:
            call("gated_delta", "decode", layer_id)
        assert isinstance(caught.value, TypeError)
        assert (caught.value.model, caught.value.layers) == ("tiny", 8)
    with pytest.raises(SwitchrailError):
        plan.plan.layout.layer(layer_id)


@pytest.mark.parametrize("layer_id", [-1, 8, 2**31, 2**64, -(2**70)])
def test_an_id_outside_the_layout_is_refused(make_plan: Any, layer_id: int) -> None:
    plan = make_plan()
    for call in (plan.lookup, plan.backend, plan.plan.lookup):
        with pytest.raises(
            UnknownLayerError, match=rf"tiny has no layer {layer_id}; valid.*0 to 7"
        ) as caught:
            call("gated_delta", "decode", layer_id)
        assert isinstance(caught.value, LookupError)
        assert (caught.value.found, caught.value.model, caught.value.layers) == (layer_id, "tiny", 8)
    with pytest.raises(UnknownLayerError):
        plan.plan.layout.layer(layer_id)


def test_neither_layer_nor_id(make_plan: Any) -> None:
    plan = make_plan()
    with pytest.raises(LayerTypeError, match="neither a layer nor a layer id"):
        plan.lookup("gated_delta", "decode")
    with pytest.raises(LayerTypeError, match="neither layer_id nor layer_idx"):
        plan.lookup("gated_delta", "decode", layer=SimpleNamespace(id=3))
    assert plan.lookup("gated_delta", "decode", 2, SimpleNamespace(id=3))


def test_a_layers_own_error_is_raised_unchanged(make_plan: Any) -> None:
    error = RuntimeError("mine")

    class Layer:
        @property
        def layer_id(self) -> int:
            raise error

    with pytest.raises(RuntimeError) as caught:
        make_plan().lookup("gated_delta", "decode", layer=Layer())
    assert caught.value is error


def test_unknown_ops_and_phases(make_plan: Any) -> None:
    plan = make_plan()
    with pytest.raises(UnknownOpError, match='nearest: "gated_delta"'):
        plan.lookup("gated-delta", "decode", 0)
    with pytest.raises(UnknownOpError):
        plan.lookup(3, "decode", 0)
    with pytest.raises(UnknownPhaseError, match='nearest: "decode"'):
        plan.lookup("gated_delta", "decoding", 0)
    with pytest.raises(NoRouteError, match="made without verify"):
        plan.lookup("gated_delta", "verify", 0)
    with pytest.raises(NoRouteError, match="does not run kda"):
        plan.lookup("kda", "decode", 0)
    with pytest.raises(NoRouteError, match='it runs "short_conv", "gated_delta"') as caught:
        plan.lookup("attention", "decode", 0)
    assert (caught.value.found, caught.value.valid) == ("attention", ("short_conv", "gated_delta"))


@pytest.mark.parametrize(("kind", "op"), [("gated_delta", "gated_delta"), ("full_attention", "attention")])
def test_layouts_of_one_kind_only(make_plan: Any, kind: str, op: str) -> None:
    plan = make_plan([kind] * 3)
    assert all(plan.lookup(op, "decode", layer) for layer in range(3))
    with pytest.raises(UnknownLayerError):
        plan.lookup(op, "decode", 3)


def test_an_empty_layout_has_no_valid_id(make_plan: Any) -> None:
    plan = make_plan([])
    with pytest.raises(UnknownLayerError, match="has no layers"):
        plan.lookup("attention", "decode", 0)


def test_only_planned_phases_are_asked_for(make_plan: Any) -> None:
    plan = make_plan(phases=["decode"])
    assert {phase for _, _, phase, _ in plan.plan.table} == {"decode"}
    with pytest.raises(NoRouteError, match="made without prefill"):
        plan.lookup("gated_delta", "prefill", 0)
    with pytest.raises(UnknownPhaseError, match="at least one phase"):
        make_plan(phases=[])


def test_a_constructors_error_is_raised_unchanged(runtime: Runtime) -> None:
    error = ValueError("mine")

    class Broken(Linear):
        def __init__(self, config: Any = None) -> None:
            raise error

    runtime.register("broken", Broken, op="gated_delta")
    plan = runtime.plan(switchrail.Layout.from_kinds("m", ["gated_delta"]), device="cpu", dtype="float32")
    with pytest.raises(ValueError, match="mine") as caught:
        runtime.bind(plan)
    assert caught.value is error


def test_a_layer_kind_without_a_backend(make_plan: Any) -> None:
    with pytest.raises(NoBackendError, match=r"layer 1 of tiny.*kda") as caught:
        make_plan(["full_attention", "kda"], features={"kda": ["teleport"]})
    assert (caught.value.op, caught.value.layers) == ("kda", (1,))
    with pytest.raises(NoBackendError, match="no op covers"):
        make_plan(["mamba1"])
    with pytest.raises(LayoutError, match='nearest: "gated_delta"'):
        make_plan(["gated-delta"])
