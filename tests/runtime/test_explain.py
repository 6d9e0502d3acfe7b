from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import switchrail
from switchrail import DeviceSupport, Runtime
from switchrail.errors import BackendUnfitError, NoBackendError, PreferenceError, UnknownBackendError

CORE = Path(__file__).parents[2] / "rust" / "switchrail" / "src"
QUERY = {"device": "cpu", "dtype": "float32"}
CUDA = {"device": "cuda", "dtype": "bfloat16"}

# Each case: a registration's arguments, a request, and the reason of the rejection (its kind, and part of its
# text).
REASONS: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({"phases": ["prefill"]}, QUERY, "phase", "does not serve decode, only prefill"),
    ({"devices": ["cuda"]}, QUERY, "device", "does not run on cpu, only on cuda"),
    (
        {"devices": [DeviceSupport("cuda", (9, 0), (10, 0))]},
        {**CUDA, "capability": (8, 9)},
        "capability",
        "does not run on capability 8.9, only on cuda 9.0 to 10.0",
    ),
    (
        {"devices": [DeviceSupport("cuda", (9, 0))]},
        CUDA,
        "capability_unknown",
        "runs only on cuda 9.0 or later, and the device's capability is not known",
    ),
    ({"dtypes": ["bfloat16", "float16"]}, QUERY, "dtype", "does not take float32, only float16, bfloat16"),
    (
        {"state_dtypes": ["bfloat16"]},
        {**QUERY, "state_dtype": "float32"},
        "state_dtype",
        "does not take a state in float32, only bfloat16",
    ),
    (
        {"head_sizes": [64, (192, 128)]},
        {**QUERY, "head_size": (192, 192)},
        "head_size",
        "does not take head size 192, only 64, 192/128",
    ),
    (
        {"page_sizes": [16, 64]},
        {**QUERY, "page_size": 32},
        "page_size",
        "does not take page size 32, only 16, 64",
    ),
    (
        {"state_layouts": ["KV"]},
        {**QUERY, "state_layout": "VK"},
        "state_layout",
        "does not take state layout VK, only KV",
    ),
    (
        {"features": ["oot:graphs"]},
        {**QUERY, "features": ["oot:verify"]},
        "features",
        "lacks oot:verify; it has oot:graphs",
    ),
    (
        {"packages": ["acme-kernels-of-nobody"]},
        QUERY,
        "package_missing",
        "needs acme-kernels-of-nobody, which is not installed",
    ),
    ({"packages": ["Pytest<1"]}, QUERY, "package_version", "needs pytest<1, and version"),
]


def rejection(decision: Any, name: str) -> tuple[dict[str, Any], str]:
    """The only reason for a backend's rejection, as data and as text."""
    [data] = [entry for entry in decision.to_dict()["rejected"] if entry["backend"]["name"] == name]
    [mirror] = [entry for entry in decision.rejected if entry.name == name]
    [reason], [text] = data["reasons"], mirror.reasons
    return reason, text


@pytest.mark.parametrize(("registered", "asked", "kind", "text"), REASONS, ids=[case[2] for case in REASONS])
def test_a_backend_that_does_not_fit_says_why(
    runtime: Runtime, registered: dict[str, Any], asked: dict[str, Any], kind: str, text: str
) -> None:
    runtime.register("acme", "acme:Acme", op="gated_delta", priority=9, **registered)
    runtime.register(
        "fits", "acme:Fits", op="gated_delta", priority=8, devices=["cpu", "cuda"], features=["oot:verify"]
    )
    decision = runtime.resolve("gated_delta", "decode", **asked)
    assert decision.chosen == "fits"
    reason, found = rejection(decision, "acme")
    assert reason["kind"] == kind
    assert text in found
    with pytest.raises(BackendUnfitError, match=re.escape(text)) as caught:
        runtime.resolve("gated_delta", "decode", **asked, preferences={"gated_delta": "acme"})
    assert caught.value.found == "acme"
    assert text in caught.value.because
    assert [entry["kind"] for entry in caught.value.chosen["reasons"]] == [kind]


def test_a_fitting_backend_may_be_overridden(runtime: Runtime) -> None:
    runtime.register("torch", "acme:Acme", op="gated_delta", override=True)
    decision = runtime.resolve("gated_delta", "decode", **QUERY)
    assert (decision.chosen, decision.origin) == ("torch", "the user")
    reason, text = rejection(decision, "torch")
    assert (reason["kind"], text) == ("overridden", "overridden by the user")


def test_a_fitting_backend_may_not_be_preferred(runtime: Runtime) -> None:
    decision = runtime.resolve("gated_delta", "decode", **QUERY, preferences={"linear.decode": "reference"})
    assert (decision.chosen, decision.because) == ("reference", "chosen for linear.decode")
    reason, text = rejection(decision, "torch")
    assert (reason["kind"], text) == ("not_preferred", "fits, but reference was chosen for linear.decode")


def test_a_fitting_backend_may_have_a_lower_priority(runtime: Runtime) -> None:
    decision = runtime.resolve("gated_delta", "decode", **QUERY)
    assert decision.because == "highest priority that fits (0)"
    reason, text = rejection(decision, "reference")
    assert (reason["kind"], text) == ("lower_priority", "fits, but its priority -100 is below 0")


def test_a_fitting_backend_may_come_later_in_order(runtime: Runtime) -> None:
    runtime.register("acme", "acme:Acme", op="gated_delta")
    decision = runtime.resolve("gated_delta", "decode", **QUERY)
    assert decision.chosen == "acme"
    reason, text = rejection(decision, "torch")
    assert (reason["kind"], "comes later by origin and name" in text) == ("later_in_order", True)


def test_a_fitting_backend_may_be_slower_or_not_measured(runtime: Runtime) -> None:
    runtime.register("acme", "acme:Acme", op="gated_delta")
    runtime.register("boreal", "boreal:Boreal", op="gated_delta")
    measured = {"op": "gated_delta", "phase": "decode", "dtype": QUERY["dtype"], "head_size": None}
    times = {"acme": 45_000, "torch": 12_340}
    measured["samples"] = [{"rows": 1, "length": 1, "nanoseconds": times}]
    decision = runtime.resolve("gated_delta", "decode", **QUERY, measurements=[measured])
    assert (decision.chosen, decision.because) == ("torch", "fastest that fits, as measured here (12.3 us)")
    reason, text = rejection(decision, "acme")
    assert (reason["kind"], reason["nanoseconds"], reason["chosen"]) == ("slower", 45_000, 12_340)
    assert text == "fits, but takes 45.0 us as measured here; the chosen one takes 12.3 us"
    reason, text = rejection(decision, "boreal")
    assert (reason["kind"], reason["chosen"]) == ("not_measured", 12_340)
    assert text == "fits, but was not measured here; the chosen one takes 12.3 us"


def test_orders_and_denials(runtime: Runtime) -> None:
    runtime.register("acme", "acme:Acme", op="gated_delta", priority=9)
    runtime.register("fits", "acme:Fits", op="gated_delta", priority=8)
    ordered = runtime.resolve("gated_delta", "decode", **QUERY, preferences={"linear": "fits, acme"})
    denied = runtime.resolve("gated_delta", "decode", **QUERY, preferences={"linear": "!acme"})
    assert ordered.chosen == denied.chosen == "fits"
    reason, text = rejection(ordered, "acme")
    assert reason["kind"] == "later_in_preference"
    assert text == "fits, but fits comes first in the order for linear"
    reason, text = rejection(denied, "acme")
    assert reason["kind"] == "denied"
    assert text == "denied for linear"


def test_every_kind_of_reason_is_tested() -> None:
    [text] = [text for file in CORE.rglob("*.rs") if "pub enum Reason {" in (text := file.read_text())]
    body = text.split("pub enum Reason {")[1].split("\n}")[0]
    variants = re.findall(r"^    ([A-Z]\w+)", body, re.MULTILINE)
    kinds = {re.sub(r"(?<!^)(?=[A-Z])", "_", variant).lower() for variant in variants}
    others = {
        "overridden",
        "not_preferred",
        "slower",
        "not_measured",
        "lower_priority",
        "later_in_order",
        "denied",
        "later_in_preference",
    }
    assert len(kinds) == 20
    assert {case[2] for case in REASONS} | others == kinds


def test_every_reason_of_a_backend_is_given(runtime: Runtime) -> None:
    runtime.register(
        "acme", "acme:Acme", op="gated_delta", phases=["prefill"], devices=["cuda"], dtypes=["float16"]
    )
    [found] = [
        entry for entry in runtime.resolve("gated_delta", "decode", **QUERY).rejected if entry.name == "acme"
    ]
    assert len(found.reasons) == 3


def test_if_no_backend_fits_each_candidate_has_a_reason(runtime: Runtime) -> None:
    with pytest.raises(NoBackendError) as caught:
        runtime.resolve("gated_delta", "decode", device="tpu", dtype="float32")
    assert "torch: does not run on tpu" in str(caught.value)
    assert {entry["backend"]["name"] for entry in caught.value.rejected} == {"torch", "reference"}
    with pytest.raises(NoBackendError, match="torch: lacks teleport"):
        runtime.resolve("kda", "decode", **QUERY, features=["teleport"])


def test_preferences_fall_back_from_the_special_to_the_common(runtime: Runtime) -> None:
    runtime.register("acme", "acme:Acme", op="gated_delta", priority=-1)

    def chosen(phase: str, **preferences: str) -> str:
        keys = {key.replace("__", "."): name for key, name in preferences.items()}
        return runtime.resolve("gated_delta", phase, **QUERY, preferences=keys).chosen

    assert chosen("decode", linear="acme") == "acme"
    assert chosen("decode", linear="acme", linear__decode="reference") == "reference"
    assert chosen("prefill", linear="acme", linear__decode="reference") == "acme"
    assert chosen("decode", linear__decode="reference", gated_delta="acme") == "acme"
    assert chosen("decode", gated_delta="acme", gated_delta__decode="reference") == "reference"
    assert chosen("decode", linear="acme", gated_delta="auto") == "torch"
    assert chosen("decode", kda="auto") == "torch"


def test_invalid_preferences(runtime: Runtime) -> None:
    with pytest.raises(PreferenceError, match='nearest: "gated_delta"') as caught:
        runtime.resolve("gated_delta", "decode", **QUERY, preferences={"gated_dleta": "torch"})
    assert "linear.verify" in caught.value.valid
    with pytest.raises(UnknownBackendError, match='nearest: "torch"') as unknown:
        runtime.resolve("gated_delta", "decode", **QUERY, preferences={"linear.decode": "trch"})
    assert unknown.value.key == "linear.decode"


def test_a_plan_says_why_for_every_route(runtime: Runtime) -> None:
    layout = switchrail.Layout.from_kinds("tiny", ["gated_delta", "full_attention"])
    plan = runtime.plan(
        layout, device="cpu", dtype="float32", preferences={"gated_delta.decode": "reference"}
    )
    assert [(route.layers, route.decision.op, route.decision.phase) for route in plan.routes] == [
        ([1], "attention", "prefill"),
        ([1], "attention", "decode"),
        ([0], "gated_delta", "prefill"),
        ([0], "gated_delta", "decode"),
        ([0], "short_conv", "prefill"),
        ([0], "short_conv", "decode"),
    ]
    assert plan.decisions == [route.decision for route in plan.routes]
    assert [decision.chosen for decision in plan.decisions] == ["torch"] * 3 + ["reference"] + ["torch"] * 2
    assert all(decision.version == plan.version for decision in plan.decisions)
