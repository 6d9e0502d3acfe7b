"""Wrong arguments of registration and planning raise no other errors than SwitchrailErrors."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
import switchrail
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from switchrail import Layout, Runtime, RuntimeState, _core
from switchrail.errors import ArgumentError, PreferenceError, RegistrationError, SwitchrailError
from switchrail.ops import CONTRACTS, GatedDeltaBackend
from switchrail.ops.steps import STEPS
from switchrail.testing import isolated

LAYOUT = Layout.from_kinds("tiny", ["gated_delta", "full_attention"])


class Acme(GatedDeltaBackend):
    def run(self, *args: Any, **kwargs: Any) -> Any:
        return None


QUERY = {"device": "cpu", "dtype": "float32"}
REGISTRATION: dict[str, Any] = {
    "name": "acme",
    "target": "acme:Acme",
    "op": "gated_delta",
    "phases": ["decode"],
    "devices": ["cpu"],
    "dtypes": ["float32"],
    "state_dtypes": ["float32"],
    "head_sizes": [64],
    "page_sizes": [16],
    "state_layouts": ["VK"],
    "features": ["raw_gates"],
    "packages": ["torch"],
    "priority": 0,
    "config": None,
    "override": True,
}
RESOLVED: dict[str, Any] = {
    **QUERY,
    "op": "gated_delta",
    "phase": "decode",
    "capability": None,
    "state_dtype": "float32",
    "head_size": 64,
    "page_size": 16,
    "state_layout": "VK",
    "features": [],
    "heads": (4, 4),
    "no_decay": False,
    "preferences": {"linear": "torch"},
    "measurements": [],
}
PLANNED: dict[str, Any] = {
    **QUERY,
    "layout": LAYOUT,
    "capability": None,
    "state_dtype": "float32",
    "page_size": 16,
    "state_layouts": {"gated_delta": "VK"},
    "features": {"gated_delta": []},
    "preferences": {"linear": "torch"},
    "phases": ["decode"],
    "no_decay": ["kda"],
    "measurements": [],
}
BACKEND = {"op": "gated_delta", "name": "torch", "phase": "decode"}

Call = Callable[[Runtime, dict[str, Any]], object]


def planned(runtime: Runtime) -> switchrail.RoutePlan:
    return runtime.plan(LAYOUT, device="cpu", dtype="float32")


CALLS: dict[str, tuple[Call, Mapping[str, Any]]] = {
    "register": (lambda runtime, given: runtime.register(**given), REGISTRATION),
    "clear": (lambda runtime, given: runtime.clear(**given), BACKEND),
    "configure": (
        lambda runtime, given: runtime.configure(given["op"], given["name"], **{"x": given["x"]}),
        {"op": "gated_delta", "name": "torch", "x": 1},
    ),
    "backends": (lambda runtime, given: runtime.backends(**given), {"op": "kda"}),
    "backend": (lambda runtime, given: runtime.backend(**given), BACKEND),
    "build": (lambda runtime, given: runtime.build(**given), BACKEND),
    "is_overridden": (lambda runtime, given: runtime.is_overridden(**given), BACKEND),
    "stack": (lambda runtime, given: runtime.stack(**given), {"op": "kda", "name": "torch"}),
    "resolve": (lambda runtime, given: runtime.resolve(**given), RESOLVED),
    "plan": (lambda runtime, given: runtime.plan(**given), PLANNED),
    "bind": (lambda runtime, given: runtime.bind(**given), {"plan": None}),
    "fingerprint": (lambda runtime, given: runtime.fingerprint(given["plan"]), {"plan": None}),
    "state": (lambda runtime, given: RuntimeState.of(runtime, given["plan"]), {"plan": None}),
    "from_kinds": (
        lambda runtime, given: Layout.from_kinds(**given),
        {"model": "tiny", "kinds": ["gated_delta"]},
    ),
    "from_config": (lambda runtime, given: Layout.from_config(**given), {"config": {"model_type": "mamba"}}),
    "from_json": (lambda runtime, given: Layout.from_json(**given), {"text": "{}"}),
    "layer": (lambda runtime, given: LAYOUT.layer(**given), {"id": 0}),
    "shape": (lambda runtime, given: LAYOUT.shape(**given), {"kind": "gated_delta", "op": "gated_delta"}),
    "Decision.at": (
        lambda runtime, given: runtime.resolve("attention", "decode", **QUERY).at(**given),
        {"seqlens": [1], "kv_seqlens": [1]},
    ),
    "RoutePlan.lookup": (
        lambda runtime, given: planned(runtime).lookup(**given),
        {"op": "gated_delta", "phase": "decode", "layer_id": 0, "layer": None},
    ),
    "BoundPlan.lookup": (
        lambda runtime, given: runtime.bind(planned(runtime)).lookup(**given),
        {"op": "gated_delta", "phase": "decode", "layer_id": 0, "layer": None},
    ),
    "BoundPlan.at": (
        lambda runtime, given: runtime.bind(planned(runtime)).at(**given),
        {"phase": "decode", "seqlens": [1], "kv_seqlens": [1]},
    ),
    "DeviceSupport": (
        lambda runtime, given: runtime.register(
            "acme", Acme, op="gated_delta", override=True, devices=[switchrail.DeviceSupport(**given)]
        ),
        {"kind": "cuda", "min_capability": (8, 0), "max_capability": (9, 0)},
    ),
}
"""By name: a call, which takes its arguments in a mapping, and arguments, one of which a test replaces."""

PLACES = [(name, argument) for name, (_, arguments) in CALLS.items() for argument in arguments]

INTERNAL = ["failed to extract", "Rust", "Heads", "u32", "PyO3", "interpreted as", "be converted", "enum "]
"""Words of the core's internal messages, which users must not see."""


def cyclic() -> list[Any]:
    values: list[Any] = []
    values.append(values)
    return values


def nested(depth: int) -> Any:
    value: Any = "torch"
    for _ in range(depth):
        value = {"text_config": [value]}
    return value


class Failing:
    """An object whose repr fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


WRONG: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2**31,
    2**64,
    -(2**70),
    10**5000,
    1.5,
    math.nan,
    math.inf,
    1j,
    "",
    "auto",
    "torch",
    "gdn",
    "\ud800",
    "a\x00b\x1b[2K",
    "x" * 100_000,
    b"torch",
    bytearray(b"torch"),
    [],
    [None],
    [True],
    [-1],
    [2**70],
    [1.5],
    ["\ud800"],
    ["torch", 1],
    [["torch"]],
    [(1, -1)],
    [(1, 2, 3)],
    (1, 2),
    (-1, 2),
    (True, 2),
    (2**40, 1),
    {},
    {"gated_delta": None},
    {"gated_delta": 1},
    {"gated_delta": ["x", 1]},
    {"linear": "\ud800"},
    {"\ud800": "torch"},
    {1: "torch"},
    {None: None},
    {"linear": {"linear": "torch"}},
    set(),
    {1, 2},
    range(3),
    object(),
    Failing(),
    [Failing()],
    object,
    Acme,
    len,
    LAYOUT,
    nested(50),
    nested(5_000),
    cyclic(),
]


def call(runtime: Runtime, name: str, argument: str, found: Any) -> BaseException | None:
    work, arguments = CALLS[name]
    try:
        work(runtime, {**arguments, argument: found})
    except SwitchrailError as error:
        return error
    return None


def told(error: BaseException | None) -> None:
    if error is None:
        return
    message = str(error)
    assert message
    assert len(message) < 25_000
    assert not [word for word in INTERNAL if word in message], message


@pytest.mark.parametrize(("name", "argument"), PLACES, ids=[" ".join(place) for place in PLACES])
def test_wrong_values_raise_only_our_errors(name: str, argument: str) -> None:
    """A runtime is used again until a call succeeds, and failed calls leave it unchanged."""
    with ExitStack() as stack:
        new = stack.enter_context(isolated())
        runtime = stack.enter_context(isolated())
        for found in WRONG:
            error = call(runtime, name, argument, found)
            told(error)
            if error is None:
                runtime = stack.enter_context(isolated())
        assert runtime.fingerprint() == new.fingerprint()


def values() -> st.SearchStrategy[Any]:
    plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=3)
    names = st.sampled_from(
        ["gated_delta", "linear", "torch", "decode", "cpu", "float32", "VK", "rows", "samples", "op"]
    )
    return st.recursive(
        plain | names,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.tuples(inner, inner)
            | st.dictionaries(names | st.text(max_size=3) | st.integers(), inner, max_size=3)
        ),
        max_leaves=5,
    )


@settings(max_examples=400, suppress_health_check=list(HealthCheck))
@given(place=st.sampled_from(PLACES), found=values())
def test_drawn_values_raise_only_our_errors(place: tuple[str, str], found: Any) -> None:
    with isolated() as runtime:
        told(call(runtime, *place, found))


@pytest.mark.parametrize(
    ("arguments", "error", "part"),
    [
        ({"features": ["raw_gate"]}, RegistrationError, 'unknown feature "raw_gate"; nearest: "raw_gates"'),
        ({"features": ["window"]}, RegistrationError, "features"),
        ({"features": ["oot:"]}, RegistrationError, '"oot:NAME"'),
        ({"state_layouts": ["vk"]}, RegistrationError, 'unknown state layout "vk"; nearest: "VK"'),
        ({"priority": True}, ArgumentError, "priority is True; valid: an integer"),
        ({"priority": 2**31}, ArgumentError, "priority is 2147483648; valid: an integer"),
        ({"override": 1}, ArgumentError, "override is 1; valid: True or False"),
        ({"head_sizes": [-1]}, ArgumentError, "head_sizes[0] is -1; valid: an integer from 0"),
        ({"head_sizes": [(64, -1)]}, ArgumentError, "head_sizes[0] is (64, -1); valid: an integer, or"),
        ({"page_sizes": [True]}, ArgumentError, "page_sizes[0] is True"),
        ({"phases": {"decode": 1}}, ArgumentError, "phases is {'decode': 1}; valid: a list"),
        ({"op": 5}, ArgumentError, "op is 5; valid: a string"),
        ({"op": "swa"}, SwitchrailError, 'nearest: "attention"'),
    ],
)
def test_messages_of_registration(arguments: dict[str, Any], error: type[SwitchrailError], part: str) -> None:
    with isolated() as runtime, pytest.raises(error) as caught:
        runtime.register(**{**REGISTRATION, **arguments})
    assert part in str(caught.value)
    if error is RegistrationError:
        assert caught.value.fields["field"] in arguments
        assert caught.value.valid


@pytest.mark.parametrize("op", _core.OPS)
def test_the_known_features_are_those_of_the_contract_and_the_suite(op: str) -> None:
    contract = CONTRACTS[op]
    with isolated() as runtime, pytest.raises(RegistrationError) as caught:
        runtime.register("acme", "acme:Acme", op=op, features=["no such feature"])
    own = [step.name for step in STEPS.values() if op in step.ops]
    assert set(caught.value.valid) == {*contract.features, *own, "batch_invariant", "cuda_graph", "oot:NAME"}
    assert contract.state_layout in (None, "VK")


def test_a_plugins_own_names_are_taken() -> None:
    claims = {"features": ["oot:fast", "checkpoints"], "state_layouts": ["oot:tiles"]}
    with isolated() as runtime:
        runtime.register(**{**REGISTRATION, **claims})
        runtime.resolve("gated_delta", "decode", **QUERY, features=["oot:fast"], state_layout="oot:tiles")


@pytest.mark.parametrize(
    ("preferences", "error", "part"),
    [
        ({1: "torch"}, ArgumentError, "a key of preferences is 1; valid: a string"),
        ({"linear": None}, ArgumentError, "preferences['linear'] is None; valid: a string"),
        ({"linear": ["torch"]}, ArgumentError, "preferences['linear'] is ['torch']"),
        ("torch", ArgumentError, "preferences is 'torch'; valid: a mapping"),
        (5, ArgumentError, "preferences is 5; valid: a mapping"),
        ([("linear", "torch")], ArgumentError, "preferences is [('linear', 'torch')]; valid: a mapping"),
        ({"gdn.decode": "torch"}, PreferenceError, 'nearest: "gated_delta.decode"'),
        ({"linear_attention": "torch"}, PreferenceError, 'nearest: "linear"'),
    ],
)
def test_messages_of_preferences(preferences: Any, error: type[SwitchrailError], part: str) -> None:
    with isolated() as runtime:
        for ask in (
            lambda: runtime.resolve("gated_delta", "decode", **QUERY, preferences=preferences),
            lambda: runtime.plan(LAYOUT, **QUERY, preferences=preferences),
        ):
            with pytest.raises(error) as caught:
                ask()
            assert part in str(caught.value)


@pytest.mark.parametrize(
    "cls", [_core.Layout, _core.Decision, _core.Snapshot, _core.Lock, _core.Plugin, _core.Registration]
)
@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        '{"schema":' * 200_000,
        '{"schema": 1e999}',
        '{"schema": 123456789012345678901234567890}',
        '{"schema": ' + "9" * 100_000 + "}",
        '"' + "\\ud800",
        json.dumps({"schema": 1, "model": ["x"]}),
    ],
    ids=["lists", "objects", "infinite", "large", "long", "half", "types"],
)
def test_invalid_documents(cls: Any, text: str) -> None:
    with pytest.raises(SwitchrailError) as caught:
        cls.from_json(text)
    assert len(str(caught.value)) < 5_000
