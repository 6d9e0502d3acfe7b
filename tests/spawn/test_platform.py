"""A chosen platform is sent to workers; a detected one is detected again there."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
from switchrail import Runtime, RuntimeState
from switchrail.errors import InstallationError, UnpicklableError


@pytest.fixture
def platforms(environment: None) -> Any:
    import userland_platform  # type: ignore[import-not-found]

    return userland_platform


def test_a_detected_platform_is_not_a_choice(runtime: Runtime) -> None:
    assert runtime.platform.kind
    assert RuntimeState.of(runtime).platform is None


@pytest.mark.parametrize("choice", ["cpu", "userland_platform:Mine", "object"])
def test_a_choice_is_restored(runtime: Runtime, platforms: Any, choice: str) -> None:
    runtime.use_platform(platforms.Mine() if choice == "object" else choice)
    state = pickle.loads(pickle.dumps(RuntimeState.of(runtime)))
    runtime.use_platform("cpu")
    runtime.register("else", "a:B", op="kda")
    other = state.restore()
    assert other is not runtime
    assert other.platform.kind == ("cpu" if choice == "cpu" else "oot:mine")
    assert RuntimeState.of(other).platform == state.platform


def test_another_choice_is_a_difference(runtime: Runtime, platforms: Any) -> None:
    runtime.use_platform("cpu")
    state = RuntimeState.of(runtime)
    assert state.restore() is runtime
    runtime.use_platform(platforms.Mine())
    assert state.restore() is not runtime


def test_a_device_that_is_not_there(runtime: Runtime) -> None:
    state = replace(RuntimeState.of(runtime), platform="cuda:99")
    with pytest.raises(InstallationError, match="'cuda:99'") as caught:
        state.restore()
    assert "platform: choice is None, not 'cuda:99'" in caught.value.fields["differences"]


def test_a_platform_without_a_name(runtime: Runtime, platforms: Any) -> None:
    class Local(platforms.Mine):  # type: ignore[misc]
        pass

    runtime.use_platform(Local())
    with pytest.raises(UnpicklableError, match=r"platform .*Local:cpu: it is local to test_a_platform"):
        RuntimeState.of(runtime)
