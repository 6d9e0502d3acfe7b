"""A worker receives its parent's plugins and registrations, in the same order, with the same
configuration."""

from __future__ import annotations

import multiprocessing
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from switchrail import DeviceSupport, Layout, Runtime, RuntimeState, current_runtime

ONE = """
import dataclasses

@dataclasses.dataclass
class Config:
    scale: float = 1.0

def after(result, value):
    return result * 100

def register(registry):
    registry.register("one", "acme_one:One", op="gated_delta", config=Config, priority=-1)
    registry.register("torch", "acme_one:Torch", op="gated_delta", override=True)
    registry.register("unwanted", "acme_one:Unwanted", op="kda")
    registry.hook("userland.target", after, "after")
"""
TWO = """
def double(value):
    return (value * 2,), {}

def register(registry):
    registry.register("torch", "acme_two:Torch", op="gated_delta", override=True)
    registry.hook("userland.target", double, priority=5)
"""


@pytest.fixture
def parent(runtime: Runtime, install: Callable[..., Path], userland: Any) -> Runtime:
    """A runtime with loaded, failed and blocked plugins, and with every kind of change made by a user."""
    install("acme-one", ONE)
    install("acme-two", TWO)
    install("acme-broken", "def register(registry): raise ValueError('half-way')")
    install("acme-blocked")
    runtime.load(["acme-two"])
    runtime.load(["acme-two", "acme-one", "acme-broken"])
    runtime.register(
        "mine",
        "userland:Mine",
        op="gated_delta",
        devices=["cpu", DeviceSupport("cuda", (8, 0), (9, 9))],
        head_sizes=[64, (64, 128)],
        features=["oot:drafts"],
        packages=["torch>=2"],
        config=userland.Settings(scale=2.0),
        priority=-3,
    )
    runtime.register("torch", "userland:Torch", op="gated_delta", override=True)
    runtime.register("triton", "userland:Other", op="short_conv", override=True)
    runtime.clear("kda", "unwanted")
    runtime.configure("gated_delta", "one", scale=3.5)
    runtime.configure("gated_delta", "mine", name="fancy")
    first = runtime.hooks.add("userland.target", userland.add_one, "after", priority=1)
    runtime.hooks.disable(runtime.hooks.add("userland.target", userland.double, source="somebody"))
    runtime.hooks.add("userland_later.function", userland.double, before=["acme-one"])
    runtime.hooks.add(userland.target, userland.Owner.bound)
    assert [hook for hook in runtime.hooks.list("userland.target") if hook is first]
    return runtime


def checked(report: dict[str, Any], parent: Runtime, userland: Any) -> None:
    expected = userland.report(parent)
    assert expected["loaded"] == ["acme-two:acme-two", "acme-one:acme-one"]
    assert (
        expected["plugins"].items()
        >= {
            "acme-broken:acme-broken": "failed",
            "acme-blocked:acme-blocked": "blocked",
        }.items()
    )
    assert expected["target"] == 1201
    assert report.pop("process") != expected.pop("process")
    del expected["torch"]
    assert report.pop("torch") is False
    assert report == expected


METHODS = [method for method in ("spawn", "forkserver") if method in multiprocessing.get_all_start_methods()]


@pytest.mark.parametrize("method", METHODS)
def test_restoring_as_an_initializer(parent: Runtime, userland: Any, method: str) -> None:
    state = RuntimeState.of(parent)
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(1, context, initializer=state.restore) as pool:
        checked(pool.submit(userland.report).result(), parent, userland)


def test_restoring_an_argument(parent: Runtime, userland: Any) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        checked(pool.apply(userland.restored, (RuntimeState.of(parent),)), parent, userland)


def test_restoring_bytes_in_a_process_of_any_kind(parent: Runtime, userland: Any) -> None:
    text = pickle.dumps(RuntimeState.of(parent))
    assert len(text) < 20_000
    program = (
        f"import pickle, sys; sys.path[:] = {sys.path}; state = pickle.load(sys.stdin.buffer);"
        "import userland; sys.stdout.buffer.write(pickle.dumps(userland.restored(state)))"
    )
    done = subprocess.run([sys.executable, "-c", program], input=text, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    checked(pickle.loads(done.stdout), parent, userland)


def test_workers_can_pass_the_state_on(parent: Runtime) -> None:
    state = RuntimeState.of(parent)
    assert pickle.loads(pickle.dumps(state)) == state
    assert RuntimeState.of(pickle.loads(pickle.dumps(state)).restore()) == state


def test_restoring_twice_changes_nothing(parent: Runtime) -> None:
    state = pickle.loads(pickle.dumps(RuntimeState.of(parent)))
    assert state.restore() is parent  # the default runtime of this process, which is already equal
    parent.configure("gated_delta", "one", scale=1.5)
    other = state.restore()
    assert other is not parent
    assert other is current_runtime()
    assert other is state.restore()
    assert other.backend("gated_delta", "one").effective_config == {"scale": 3.5}


def test_hooks_of_the_previous_runtime_are_removed(runtime: Runtime, userland: Any) -> None:
    state = RuntimeState.of(runtime)
    runtime.hooks.add("userland.target", userland.double)
    assert userland.target(1) == 2
    state.restore()
    assert userland.target(1) == 1
    assert runtime.hooks.list() == ()


def test_registrations_of_an_import(runtime: Runtime, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "userland_module.py").write_text(
        "import switchrail\n"
        "from switchrail.ops import GatedDeltaBackend\n"
        "@switchrail.register('mine', op='gated_delta', phases=['decode'])\n"
        "class Mine(GatedDeltaBackend):\n"
        "    def run(self, *arguments): pass\n"
        "@switchrail.hook('userland.target')\n"
        "def before(value): return (value + 1,), {}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import userland
    import userland_module  # type: ignore[import-not-found]

    state = RuntimeState.of(runtime)
    del sys.modules["userland_module"]
    runtime.register("else", "userland:Else", op="kda")
    other = state.restore()
    assert other is not runtime
    assert other.fingerprint() == state.fingerprint
    assert userland.target(1) == 2
    implementation = other._core.object(other.backend("gated_delta", "mine").id)
    assert implementation.target is sys.modules["userland_module"].Mine is not userland_module.Mine


def test_plans_are_made_again(runtime: Runtime) -> None:
    runtime.register(
        "mine", "switchrail.ops.gated_delta.torch:TorchGatedDelta", op="gated_delta", state_layouts=["VK"]
    )
    plan = runtime.plan(
        Layout.from_kinds("tiny", ["gated_delta", "full_attention"]),
        device="cuda",
        capability=(9, 0),
        dtype="bfloat16",
        page_size=16,
        preferences={"linear.decode": "torch", "gated_delta.prefill": "reference"},
        features={"attention": []},
    )
    state = pickle.loads(pickle.dumps(RuntimeState.of(runtime, plan)))
    fingerprint = runtime.fingerprint(plan)
    runtime.clear("gated_delta", "mine")
    other = state.restore()
    [again] = state.make_plans(other)
    assert again.table == plan.table
    assert again.fingerprint == plan.fingerprint
    assert other.fingerprint(again) == fingerprint
