"""Tests of `load`, which selects plugins, imports them and applies their registrations and hooks."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import switchrail
from switchrail import Runtime
from switchrail.errors import (
    ArgumentError,
    ConfigError,
    LoadReentryError,
    LockError,
    PlatformError,
    PluginError,
    StalePlanError,
    UnknownBackendError,
    UnknownPluginError,
)
from switchrail.ops.gated_delta.torch import TorchGatedDelta
from switchrail.variables import LOCK, PLATFORM, TIMEOUT

from tests.forking import forked
from tests.loading.conftest import Find, Install

GOOD = """
def register(registry):
    registry.register("acme", "acme_good:Acme", op="gated_delta", priority=-1)
"""


def test_discovery_imports_nothing(runtime: Runtime, install: Install, find: Find) -> None:
    info = install("acme-good", GOOD, version="1.2")
    runtime.discover()
    plugin = find("acme-good")
    assert (plugin.state, plugin.distribution, plugin.version) == ("discovered", "acme-good", "1.2")
    assert (plugin.target, plugin.path, plugin.reason) == ("acme_good:register", str(info), None)
    assert "acme_good" not in sys.modules
    assert runtime.discover([]) == ()


def test_a_plugin_registers_under_its_own_origin(runtime: Runtime, install: Install, find: Find) -> None:
    install("acme-good", GOOD, version="1.2")
    runtime.load(["acme-good"])
    assert find("acme-good").state == "loaded"
    assert runtime.backend("gated_delta", "acme").origin == 'plugin "acme-good" of acme-good 1.2'
    runtime.clear("gated_delta", "acme")
    runtime.load(["acme-good"])
    assert "acme" not in {backend.name for backend in runtime.backends()}


def test_a_missing_backend_of_an_installed_plugin_hints_at_load(runtime: Runtime, install: Install) -> None:
    install("acme-good", GOOD)
    query: dict[str, Any] = {"device": "cpu", "dtype": "float32", "preferences": {"gated_delta": "acme"}}
    runtime.discover()
    hint = r"not loaded: .*acme-good.*; `Runtime.load\(\)` loads installed plugins"
    with pytest.raises(UnknownBackendError, match=hint):
        runtime.backend("gated_delta", "acme")
    with pytest.raises(UnknownBackendError, match=hint):
        runtime.resolve("gated_delta", "decode", **query)
    layout = switchrail.Layout.from_kinds("tiny", ["gated_delta"])
    with pytest.raises(UnknownBackendError, match=hint):
        runtime.plan(layout, **query)
    other = Runtime()
    other.load(["acme-good"])
    with pytest.raises(StalePlanError, match=hint):
        runtime.bind(other.plan(layout, **query))

    class Wrapper(TorchGatedDelta):
        def __init__(self, config: None = None) -> None:
            runtime.build("gated_delta", "acme")

    runtime.register("wrapper", Wrapper, op="gated_delta")
    plan = runtime.plan(layout, **{**query, "preferences": {"gated_delta": "wrapper"}})
    with pytest.raises(UnknownBackendError, match=hint) as caught:
        runtime.bind(plan)
    assert caught.value.message.count("not loaded") == 1
    runtime.load(["acme-good"])
    with pytest.raises(UnknownBackendError) as caught:
        runtime.backend("gated_delta", "acmee")
    assert "load" not in caught.value.message


def test_switchrail_load_loads_the_default_runtime(runtime: Runtime, install: Install) -> None:
    install("acme-good", GOOD)
    assert switchrail.load(["acme-good"], strict=True, timeout=60) == runtime.plugins
    assert runtime.backend("gated_delta", "acme")


def test_loading_again_changes_nothing(runtime: Runtime, install: Install) -> None:
    install("acme-count", "calls = []\nregister = calls.append")
    first = runtime.load()
    assert runtime.load() == first
    runtime.discover()
    assert runtime.load(["acme-count"]) == first
    assert len(sys.modules["acme_count"].calls) == 1


def test_loaded_plugins_stay_loaded_whatever_is_discovered(
    runtime: Runtime, install: Install, find: Find, tmp_path: Path
) -> None:
    install("acme-good", GOOD)
    install("acme-other")
    runtime.load(["acme-good"])
    before = runtime.fingerprint()
    assert [plugin.name for plugin in runtime.discover([tmp_path / "nothing"])] == ["acme-good"]
    assert runtime.load(["acme-good"], strict=True) == runtime.plugins == (find("acme-good"),)
    runtime.discover()
    runtime.load(["acme-good", "acme-other"], strict=True)
    assert (find("acme-good").state, find("acme-other").state) == ("loaded", "loaded")
    assert len(runtime._core.stack("gated_delta", "acme")) == 1
    assert runtime.fingerprint() != before


@pytest.mark.parametrize("call", ["discover", "load"])
def test_lists_of_values_that_are_not_strings(runtime: Runtime, call: str) -> None:
    for found in (5, b"name"):
        with pytest.raises(ArgumentError, match=rf"(paths|plugins)\[0\] is {found!r}; valid: a string"):
            getattr(runtime, call)([found])


def test_two_distributions_with_one_name_both_load(runtime: Runtime, install: Install, find: Find) -> None:
    install("acme-one", "def register(registry):\n    registry.register('a', 'a:A', op='kda')", plugin="acme")
    install("acme-two", "def register(registry):\n    registry.register('b', 'b:B', op='kda')", plugin="acme")
    runtime.load(["acme"])
    assert [find(f"acme-{name}:acme").state for name in ("one", "two")] == ["loaded", "loaded"]
    assert {"a", "b"} <= {backend.name for backend in runtime.backends("kda")}


def test_the_allow_list(
    runtime: Runtime, install: Install, find: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("acme-good", GOOD)
    install("acme-other")
    monkeypatch.setenv("SWITCHRAIL_PLUGINS", "acme-other:acme-other,")
    runtime.load()
    assert (find("acme-other").state, find("acme-good").state) == ("loaded", "blocked")
    assert "acme_good" not in sys.modules
    assert "allow list" in (find("acme-good").reason or "")
    monkeypatch.setenv("SWITCHRAIL_PLUGINS", "acme-goood")
    before = runtime.plugins
    with pytest.raises(UnknownPluginError, match='nearest: "acme-good"') as caught:
        runtime.load()
    assert "acme-other" in caught.value.valid
    assert runtime.plugins == before
    monkeypatch.setenv("SWITCHRAIL_PLUGINS", "")
    assert {plugin.state for plugin in Runtime().load()} == {"blocked"}
    runtime.load(["acme-good"])
    assert find("acme-good").state == "loaded"
    with pytest.raises(ArgumentError, match="plugins is 'acme-good'"):
        runtime.load("acme-good")


PLATFORM_PLUGIN = {
    "switchrail.plugins": "ops = acme_npu:register",
    "switchrail.platforms": "acme_npu = acme_npu:platform",
}


@pytest.mark.parametrize(
    ("variable", "asked", "state"),
    [
        (None, None, "loaded"),
        ("acme_npu", None, "loaded"),
        ("acme-npu:acme_npu", None, "loaded"),
        ("cpu", None, "blocked"),
        ("", None, "loaded"),
        ("acme_npu", "cpu", "blocked"),
    ],
)
def test_general_plugins_of_another_platform_are_left_out(
    runtime: Runtime,
    install: Install,
    find: Find,
    monkeypatch: pytest.MonkeyPatch,
    variable: str | None,
    asked: str | None,
    state: str,
) -> None:
    install("acme-npu", groups=PLATFORM_PLUGIN)
    install("acme-good", GOOD)
    if variable is not None:
        monkeypatch.setenv(PLATFORM, variable)
    if asked is not None:
        runtime.use_platform(asked)
    runtime.load()
    assert (find("ops").state, find("acme_npu").state) == (state, "discovered")
    assert ("acme_npu" in sys.modules) == (state == "loaded")
    assert find("acme-good").state == "loaded"
    if state == "blocked":
        assert find("ops").reason == 'acme-npu provides the platform "acme_npu", but "cpu" is in use'


def test_a_platform_that_is_not_there_loads_nothing(
    runtime: Runtime, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("acme-npu", groups=PLATFORM_PLUGIN)
    monkeypatch.setenv(PLATFORM, "acme_gpu")
    with pytest.raises(PlatformError, match="acme_npu"):
        runtime.load()
    assert "acme_npu" not in sys.modules
    assert runtime.plugins == ()


def test_a_plugin_that_differs_from_the_lock_is_not_imported(
    runtime: Runtime, install: Install, find: Find, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("acme-good", GOOD)
    info = install("acme-changed")
    lock = tmp_path / "switchrail.lock"
    found = switchrail._core.discover([path for path in sys.path if isinstance(path, str)])
    lock.write_text(str(switchrail._core.Lock.of(found)))
    (info.parent / "acme_changed.py").write_text("def register(registry): pass  # changed")
    install("acme-added")
    monkeypatch.setenv(LOCK, str(lock))
    with pytest.raises(PluginError, match="acme-changed:acme-changed") as caught:
        runtime.load(strict=True)
    assert {plugin.name for plugin in caught.value.plugins} == {"acme-added", "acme-changed"}
    assert find("acme-good").state == "loaded"
    for name in ("acme-added", "acme-changed"):
        assert find(name).state == "blocked"
        assert find(name).reason in str(caught.value)
        assert name.replace("-", "_") not in sys.modules
    assert runtime.load() == runtime.plugins
    lock.write_text("{}")
    fresh = Runtime()
    with pytest.raises(LockError):
        fresh.load()
    assert fresh.plugins == ()


def test_a_refused_reentry_does_not_prevent_later_loads(
    runtime: Runtime, install: Install, find: Find
) -> None:
    install("acme-good", GOOD)
    runtime._loader._flight.thread = threading.get_ident()
    with pytest.raises(LoadReentryError):
        runtime.load()
    runtime._loader._flight.thread = None
    runtime.load()
    assert find("acme-good").state == "loaded"


def test_a_plugin_may_load_another_runtime(runtime: Runtime, install: Install, find: Find) -> None:
    install("acme-good", GOOD)
    install(
        "acme-nested",
        "import switchrail\nother = switchrail.Runtime()\n"
        "def register(registry):\n"
        "    other.load(['acme-good'])\n"
        "    other.register('outer', 'a:O', op='kda')\n"
        "    switchrail.register('inner', 'a:I', op='kda')\n",
    )
    runtime.load()
    assert find("acme-nested").state == "loaded"
    other = sys.modules["acme_nested"].other
    assert other.backend("kda", "outer").origin == "the user"
    assert other.backend("gated_delta", "acme").origin == 'plugin "acme-good" of acme-good 1.0'
    assert runtime.backend("kda", "inner").origin == 'plugin "acme-nested" of acme-nested 1.0'
    assert "inner" not in {backend.name for backend in other.backends()}


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), 1e300])
def test_timeouts_out_of_range(runtime: Runtime, timeout: float) -> None:
    with pytest.raises(ConfigError, match=r"timeout is .*; valid: a number of seconds above 0"):
        runtime.load(timeout=timeout)


@pytest.mark.parametrize("timeout", ["5", True, []])
def test_a_timeout_of_another_type(runtime: Runtime, timeout: Any) -> None:
    with pytest.raises(ArgumentError, match=r"timeout is .*; valid: a number of seconds, or None"):
        runtime.load(timeout=timeout)


@pytest.mark.parametrize("text", ["soon", "", "-3", "nan"])
def test_invalid_values_of_the_timeout_variable(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv(TIMEOUT, text)
    with pytest.raises(ConfigError, match=f"{TIMEOUT} is {text!r}; valid"):
        runtime.load()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_this_thread_loads_can_load(runtime: Runtime, install: Install, find: Find) -> None:
    install("acme-good", GOOD)

    def work() -> None:
        runtime.load()
        assert find("acme-good").state == "loaded"

    runtime._loader._alone(lambda: forked(work)())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_another_thread_commits_finds_nothing_half_done(
    runtime: Runtime, install: Install, find: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a process forks while another thread commits a plugin, the child has all of the plugin's hooks and
    registrations, or none."""
    install(
        "acme-both",
        "def register(registry):\n"
        "    registry.register('both', 'a:B', op='kda')\n"
        "    registry.hook('acme_target.greet', lambda name: (('there',), {}))\n",
    )
    import acme_target

    reached, go = threading.Event(), threading.Event()
    commit = switchrail.hooks.Hooks.commit

    def stop(hooks: Any, *args: Any, **options: Any) -> None:
        commit(hooks, *args, **options)
        reached.set()
        go.wait(60)

    monkeypatch.setattr(switchrail.hooks.Hooks, "commit", stop)
    thread = threading.Thread(target=runtime.load)
    thread.start()
    assert reached.wait(60)

    def work() -> None:
        assert acme_target.greet() == "hello world"
        assert "both" not in {backend.name for backend in runtime.backends("kda")}
        go.set()
        runtime.load()
        assert acme_target.greet() == "hello there"
        assert find("acme-both").state == "loaded"
        assert runtime.backend("kda", "both")

    wait = forked(work)
    go.set()
    thread.join()
    wait()
    assert find("acme-both").state == "loaded"
    assert acme_target.greet() == "hello there"
