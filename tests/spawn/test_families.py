"""The prefill of MLA as a phase of its own: registered, overridden, queried and cleared."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from switchrail import Layout, Runtime, RuntimeState, register
from switchrail.errors import BackendImportError, NameTakenError, UnknownOpError, UnknownPhaseError

from tests.crew import run_watched

CONFIG = {
    "model_type": "kimi_linear",
    "num_hidden_layers": 2,
    "linear_attn_config": {
        "full_attn_layers": [2],
        "kda_layers": [1],
        "num_heads": 2,
        "head_dim": 16,
        "short_conv_kernel_size": 4,
    },
    "num_attention_heads": 2,
    "hidden_size": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
LAYOUT = Layout.from_config(CONFIG)
MLA = ("mla", "torch")
PREFILL = {"op": "mla", "phases": ("prefill",)}


@pytest.fixture
def mla(environment: None) -> Any:
    import userland_mla

    return userland_mla


def served(runtime: Runtime, **arguments: Any) -> dict[str, str]:
    """By phase: the name of the class that serves MLA."""
    plan = runtime.plan(LAYOUT, device="cpu", dtype="float32", **arguments)
    bound = runtime.bind(plan)
    return {phase: type(bound.backend("mla", phase, 1)).__name__ for phase in arguments.get("phases", PHASES)}


PHASES = ("prefill", "decode")
BUILTIN = {"prefill": "TorchMla", "decode": "TorchMla"}


def by_path(runtime: Runtime, mla: Any) -> None:
    runtime.register("torch", "userland_mla:Prefill", **PREFILL, override=True)


def by_class(runtime: Runtime, mla: Any) -> None:
    runtime.register("torch", mla.Prefill, **PREFILL, override=True)


def by_decorator(runtime: Runtime, mla: Any) -> None:
    assert register("torch", **PREFILL, override=True)(mla.Prefill) is mla.Prefill


@pytest.mark.parametrize("override", [by_path, by_class, by_decorator])
def test_an_override_of_prefill_leaves_decode_alone(
    runtime: Runtime, mla: Any, override: Callable[[Runtime, Any], None]
) -> None:
    before = runtime.fingerprint()
    assert not runtime.is_overridden(*MLA)
    assert served(runtime) == BUILTIN
    held = runtime.bind(runtime.plan(LAYOUT, device="cpu", dtype="float32"))
    override(runtime, mla)
    assert [runtime.is_overridden(*MLA, phase) for phase in (None, "prefill", "decode", "verify")] == [
        True,
        True,
        False,
        False,
    ]
    assert served(runtime) == {"prefill": "Prefill", "decode": "TorchMla"}
    assert served(runtime, preferences={"mla": "torch"})["decode"] == "TorchMla"
    assert [backend.origin for backend in runtime.stack(*MLA)] == ["switchrail", "the user"]
    assert runtime.backend(*MLA).origin == runtime.backend(*MLA, "prefill").origin == "the user"
    assert runtime.backend(*MLA, "decode").origin == "switchrail"
    assert type(runtime.build(*MLA, "decode")).__name__ == "TorchMla"
    assert [backend.origin for backend in runtime.backends("mla") if backend.name == "torch"] == [
        "switchrail",
        "the user",
    ]
    assert runtime.fingerprint() != before
    assert type(held.backend("mla", "prefill", 1)).__name__ == "TorchMla"
    assert held.is_stale()
    decision = runtime.resolve("mla", "prefill", device="cpu", dtype="float32")
    reasons = {(other.name, other.origin): other.reasons for other in decision.rejected}
    assert reasons["torch", "switchrail"] == ["overridden by the user"]

    runtime.clear(*MLA, phase="decode")
    assert runtime.is_overridden(*MLA)
    runtime.clear(*MLA, phase="prefill")
    assert not runtime.is_overridden(*MLA)
    assert served(runtime) == BUILTIN
    assert runtime.fingerprint() == before
    runtime.clear(*MLA, phase="prefill")


def test_names_of_one_class_stay_apart(runtime: Runtime, mla: Any) -> None:
    """Two names of one class are two backends.

    If the names were members of an enum, the second would be an alias of the first.
    """
    names = ("value", "name", "mro", "members", "Prefill", "prefill", "PREFILL")
    for name in names:
        runtime.register(name, "userland_mla:Prefill", **PREFILL)
    runtime.register("torch", "switchrail.ops.mla.torch:TorchMla", **PREFILL, override=True)
    for name in names:
        assert runtime.backend("mla", name).name == name
        plan = runtime.plan(LAYOUT, device="cpu", dtype="float32", preferences={"mla.prefill": name})
        assert [row for row in plan.table if row[1:3] == ("mla", "prefill")] == [(1, "mla", "prefill", name)]
        again = pickle.loads(pickle.dumps(runtime.backend("mla", name)))
        assert (again.name, again.path) == (name, "userland_mla:Prefill")
    runtime.clear("mla", "value")
    assert runtime.backend("mla", "name")
    assert runtime.is_overridden(*MLA, "prefill")


def test_a_taken_name_names_its_owner(runtime: Runtime, mla: Any, install: Callable[..., Path]) -> None:
    taking = "def register(registry):\n    registry.register('torch', 'userland_mla:{}', op='mla', "
    install("acme-one", taking.format("Prefill") + "phases=('prefill',), override=True)")
    install("acme-two", taking.format("Other") + "phases=('prefill',))")
    install("acme-three", taking.format("Other") + "phases=('prefill',), override=True)")
    runtime.load(["acme-one", "acme-two"])
    failed = {plugin.name: plugin.reason for plugin in runtime.plugins if plugin.state == "failed"}
    assert 'plugin "acme-one" of acme-one 1.0' in failed["acme-two"]
    assert served(runtime)["prefill"] == "Prefill"
    with pytest.raises(NameTakenError, match="acme-one"):
        runtime.register("torch", mla.Other, **PREFILL)
    # overrides are restored in the order of loading
    runtime.load(["acme-one", "acme-three"])
    assert served(runtime) == {"prefill": "Other", "decode": "TorchMla"}
    decision = runtime.resolve("mla", "prefill", device="cpu", dtype="float32")
    told = {other.origin: other.reasons for other in decision.rejected if other.name == "torch"}
    assert set(told) == {"switchrail", 'plugin "acme-one" of acme-one 1.0'}
    assert all(
        reasons == ['overridden by plugin "acme-three" of acme-three 1.0'] for reasons in told.values()
    )
    runtime.clear(*MLA)
    assert served(runtime) == BUILTIN


def test_a_class_without_run_and_unknown_names_are_refused(runtime: Runtime, mla: Any) -> None:
    with pytest.raises(BackendImportError, match="has no method 'run'"):
        runtime.register("torch", mla.Nothing, **PREFILL, override=True)
    assert not runtime.is_overridden(*MLA)
    with pytest.raises(UnknownPhaseError, match="prefill"):
        runtime.is_overridden(*MLA, "prefil")
    with pytest.raises(UnknownPhaseError, match="prefill"):
        runtime.clear(*MLA, phase="prefil")
    with pytest.raises(UnknownOpError, match="mla"):
        runtime.is_overridden("mlaa", "torch")


@pytest.mark.parametrize("override", [by_path, by_class])
def test_a_worker_has_the_override(
    runtime: Runtime, mla: Any, override: Callable[[Runtime, Any], None]
) -> None:
    override(runtime, mla)
    state = RuntimeState.of(runtime, runtime.plan(LAYOUT, device="cpu", dtype="float32"))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=state.restore) as pool:
        report = pool.submit(mla.report, state).result()
    assert report == {
        "fingerprint": runtime.fingerprint(),
        "overridden": [True, False],
        "served": {"prefill": "Prefill", "decode": "TorchMla"},
        "cleared": [False, False],
    }


def test_threads_see_mla_with_or_without_the_override(runtime: Runtime, mla: Any) -> None:
    wrong: list[object] = []
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            found = served(runtime)
            if found["decode"] != "TorchMla" or found["prefill"] not in ("TorchMla", "Prefill"):
                wrong.append(found)
            if runtime.is_overridden(*MLA, "decode"):
                wrong.append("decode is overridden")

    def change() -> None:
        for _ in range(40):
            by_class(runtime, mla)
            runtime.clear(*MLA, phase="prefill")

    threads = [threading.Thread(target=change) for _ in range(2)]
    askers = [threading.Thread(target=ask) for _ in range(2)]
    run_watched(threads, askers, done)
    assert not wrong
    assert not runtime.is_overridden(*MLA)
    assert len(runtime.stack(*MLA)) == 1
