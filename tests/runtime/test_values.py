from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import switchrail
from switchrail import Runtime, RuntimeState, _core
from switchrail.doctor.finding import Finding
from switchrail.engine.request import Output
from switchrail.errors import SchemaError
from switchrail.platforms import CpuPlatform, DeviceCapability
from switchrail.pools import KVShape


@pytest.fixture
def values(runtime: Runtime, install: Callable[..., Path]) -> list[Any]:
    install("acme-value", "")
    layout = switchrail.Layout.from_kinds("tiny", ["gated_delta", "full_attention"])
    plan = runtime.plan(layout, device="cpu", dtype="float32")
    snapshot = runtime._core.snapshot()
    transaction = runtime._core.begin({"kind": "user"})
    transaction.clear("gated_delta", "torch")
    discovery = _core.discover([])
    return [
        layout,
        layout.layers[0],
        plan,
        plan.routes[0],
        plan.decisions[0],
        plan.decisions[0].rejected[0],
        runtime.backend("gated_delta", "torch"),
        snapshot,
        transaction.commit(),
        discovery,
        runtime.load(["acme-value"])[0],
        _core.fingerprint(runtime._core, [], [("a.b", ["before c.d from e"])], [plan]),
    ]


def test_values_pickle_by_value(values: list[Any]) -> None:
    for value in values:
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            copy = pickle.loads(pickle.dumps(value, protocol))
            assert type(copy) is type(value)
            assert copy == value
            assert copy is not value


def test_values_hash_as_they_compare(values: list[Any]) -> None:
    for value in values:
        copy = pickle.loads(pickle.dumps(value))
        assert hash(copy) == hash(value)
        assert {value: 1}[copy] == 1
    assert len({*values, *values}) == len(values)


def test_values_of_python_hash_as_they_compare(runtime: Runtime) -> None:
    layout = switchrail.Layout.from_kinds("tiny", ["gated_delta", "full_attention"])

    def made() -> list[Any]:
        plan = runtime.plan(layout, device="cpu", dtype="float32")
        return [
            RuntimeState.of(runtime, plan),
            RuntimeState.of(runtime, plan).plans[0],
            RuntimeState.of(runtime, plan).backends[0],
            switchrail.EngineOptions(page_size=32),
            switchrail.SamplingParams(stop=["a", "b"], stop_token_ids=[3]),  # type: ignore[arg-type]
            switchrail.DeviceSupport("cuda", (9, 0)),
            Output(prompt=None, prompt_tokens=(1,), tokens=(2,), text="", finish_reason="stop"),
            KVShape(heads=2, size=4),
            CpuPlatform(),
            CpuPlatform().identity,
            DeviceCapability(9, 0),
            Finding("device", "cpu", "slow", "wait"),
        ]

    for one, other in zip(made(), made(), strict=True):
        assert one == other
        assert hash(one) == hash(other)


def test_values_are_json(values: list[Any]) -> None:
    assert len({type(value) for value in values}) == len(values)
    for value in values:
        document = json.loads(value.to_json())
        assert type(value).from_json(json.dumps(document)) == value
        assert json.loads(json.dumps(value.to_dict())) == document
        assert repr(value).startswith(type(value).__name__ + "(")
        assert value != document


def test_invalid_documents_are_refused(values: list[Any]) -> None:
    for value in values:
        for text in ("", "[1]", '{"schema": 1}', "{"):
            with pytest.raises(SchemaError, match=f"not a {type(value).__name__} document"):
                type(value).from_json(text)


def test_another_schema_version_is_refused(values: list[Any]) -> None:
    versioned = [value for value in values if "schema" in value.to_dict()]
    assert len(versioned) >= 5
    for value in versioned:
        with pytest.raises(SchemaError, match="99"):
            type(value).from_json(json.dumps({**json.loads(value.to_json()), "schema": 99}))
