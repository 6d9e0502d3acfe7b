"""After any operations on a runtime, its state produces an equal runtime."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from switchrail import Runtime, RuntimeState
from switchrail.current import swap_current
from switchrail.errors import SwitchrailError
from switchrail.processes.differences import differences

PLUGIN = """
import dataclasses

@dataclasses.dataclass
class Config:
    scale: float = 1.0

def {name}_before(value): return (value + 1,), {{}}
def {name}_around(original, value): return original(value) * 3

def register(registry):
    registry.register("x", "acme_{name}:X", op="kda", config=Config, override={override})
    registry.register("{name}", "acme_{name}:Own", op="kda", config=Config)
    registry.hook("userland.target", {name}_before, priority={priority})
    registry.hook("userland.target", {name}_around, "around")
"""

NAMES = st.sampled_from(["x", "y", "first", "second", "third"])
STEPS = st.one_of(
    st.tuples(st.just("load"), st.sampled_from(["acme-first", "acme-second", "acme-third"])),
    st.tuples(st.just("register"), NAMES, st.booleans(), st.integers(-2, 2)),
    st.tuples(st.just("clear"), NAMES),
    st.tuples(st.just("configure"), NAMES, st.integers(1, 3)),
    st.tuples(st.just("hook"), st.sampled_from(["double", "add_one"]), st.integers(-1, 1)),
    st.tuples(st.just("remove"), st.integers(0, 9)),
    st.tuples(st.just("disable"), st.integers(0, 9)),
    st.tuples(st.just("enable"), st.integers(0, 9)),
)


@pytest.fixture
def plugins(install: Callable[..., Path]) -> None:
    for name, override, priority in (("first", True, 2), ("second", False, 0), ("third", True, 1)):
        install(f"acme-{name}", PLUGIN.format(name=name, override=override, priority=priority))


def take(runtime: Runtime, userland: Any, step: tuple[Any, ...]) -> None:
    """Perform one operation on the runtime, which may refuse it with an error."""
    hooks = [*runtime.hooks.list(), *runtime.hooks.disabled()]
    match step:
        case "load", name:
            runtime.load([name])
        case "register", name, override, priority:
            runtime.register(
                name, "userland:X", op="kda", override=override, priority=priority, config=userland.Settings
            )
        case "clear", name:
            runtime.clear("kda", name)
        case "configure", name, scale:
            runtime.configure("kda", name, scale=float(scale))
        case "hook", name, priority:
            kind = "before" if name == "double" else "after"
            runtime.hooks.add("userland.target", getattr(userland, name), kind, priority=priority)
        case what, index if hooks:
            getattr(runtime.hooks, what)(hooks[index % len(hooks)])


# The second plugin can take a name only because the first plugin's registration was cleared.
@example(steps=[("load", "acme-first"), ("clear", "x"), ("load", "acme-second")])
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(STEPS, max_size=12))
def test_a_restored_runtime_is_equal(plugins: None, userland: Any, steps: list[tuple[Any, ...]]) -> None:
    runtime = Runtime()
    before = swap_current(runtime)
    try:
        for step in steps:
            try:
                take(runtime, userland, step)
            except SwitchrailError:
                continue
        state, value = pickle.loads(pickle.dumps(RuntimeState.of(runtime))), userland.target(5)
        runtime.hooks.clear()
        swap_current(None)
        other = state.restore()
        assert other is not runtime
        assert other.fingerprint() == state.fingerprint
        assert differences(RuntimeState.of(other), state) == ()
        assert userland.target(5) == value
    finally:
        runtime.hooks.clear()
        restored = swap_current(before)
        if restored is not None:
            restored.hooks.clear()
