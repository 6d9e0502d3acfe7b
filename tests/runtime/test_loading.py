from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from switchrail import Runtime
from switchrail.errors import LoadReentryError, PluginError, TransactionClosedError, UnknownPluginError
from switchrail.plugins import Plugin

GOOD = """
def register(registry):
    registry.register("acme", "acme_good:Acme", op="gated_delta", priority=-1)
"""

FAILURES = {
    "import": ("raise RuntimeError('at import')", "RuntimeError: at import"),
    "syntax": ("def register(registry:", "SyntaxError"),
    "missing": ("", "AttributeError"),
    "half": (
        "def register(registry):\n"
        "    registry.register('half', 'acme:Half', op='gated_delta')\n"
        "    raise ValueError('half-way')",
        "ValueError: half-way",
    ),
    "exit": ("def register(registry):\n    raise SystemExit(3)", "SystemExit: 3"),
    "exit-at-import": ("import sys\nsys.exit('over')", "SystemExit: over"),
    "signature": ("def register(): pass", "TypeError"),
    "no-function": ("register = 42", "RegistrationError"),
    "class": ("class register:\n    def __init__(self, registry): pass", "RegistrationError"),
    "taken": (
        "def register(registry):\n"
        "    registry.register('mine', 'acme:Mine', op='gated_delta')\n"
        "    registry.register('torch', 'acme:Torch', op='gated_delta')",
        "NameTakenError",
    ),
    "invalid": ("def register(registry):\n    registry.register('x', 'acme:X', op='gdn')", "UnknownOpError"),
    "reentry": (
        "import switchrail\ndef register(registry):\n    switchrail.current_runtime().load()",
        "LoadReentryError",
    ),
}


@pytest.fixture(autouse=True)
def no_allow_list(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("SWITCHRAIL_PLUGINS", raising=False)
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        if name.startswith("acme_"):
            del sys.modules[name]


def find(plugins: tuple[Plugin, ...], name: str) -> Plugin:
    [plugin] = [plugin for plugin in plugins if plugin.name == name]
    return plugin


def test_discovery_imports_nothing(runtime: Runtime, install: Callable[..., Path]) -> None:
    info = install("acme-good", GOOD, version="1.2")
    plugin = find(runtime.discover(), "acme-good")
    assert (plugin.state, plugin.distribution, plugin.version) == ("discovered", "acme-good", "1.2")
    assert (plugin.target, plugin.path, plugin.reason) == ("acme_good:register", str(info), None)
    assert "acme_good" not in sys.modules
    assert runtime.discover([]) == ()


def test_a_plugin_registers_under_its_own_origin(runtime: Runtime, install: Callable[..., Path]) -> None:
    install("acme-good", GOOD, version="1.2")
    assert find(runtime.load(["acme-good"]), "acme-good").state == "loaded"
    backend = runtime.backend("gated_delta", "acme")
    assert backend.origin == 'plugin "acme-good" of acme-good 1.2'
    runtime.clear("gated_delta", "acme")
    assert find(runtime.load(["acme-good"]), "acme-good").state == "loaded"
    assert "acme" not in {backend.name for backend in runtime.backends()}


@pytest.mark.parametrize("name", FAILURES)
def test_a_plugin_that_fails_leaves_only_its_record(
    runtime: Runtime, install: Callable[..., Path], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    code, reason = FAILURES[name]
    install(f"acme-{name}", code)
    install("acme-good", GOOD)
    plain = Runtime()
    plain.load(["acme-good"])
    plugins = runtime.load([f"acme-{name}", "acme-good"])
    record = find(plugins, f"acme-{name}")
    assert record.state == "failed"
    assert reason in (record.reason or "")
    assert "Traceback" in (record.traceback or "")
    assert find(plugins, "acme-good").state == "loaded"
    [warning] = [log.getMessage() for log in caplog.records if log.name == "switchrail"]
    assert warning.startswith(f"plugin acme-{name}:acme-{name} failed to load: ")
    assert reason in warning
    assert [backend.to_dict()["spec"] for backend in runtime.backends()] == [
        backend.to_dict()["spec"] for backend in plain.backends()
    ]
    with pytest.raises(PluginError, match=f"acme-{name}:acme-{name}") as caught:
        runtime.load([f"acme-{name}", "acme-good"], strict=True)
    assert caught.value.plugins == (record,)
    assert isinstance(caught.value, ImportError)


def test_an_interrupt_passes_and_leaves_nothing(runtime: Runtime, install: Callable[..., Path]) -> None:
    install(
        "acme-stop",
        "def register(registry):\n"
        "    registry.register('stop', 'acme:Stop', op='gated_delta')\n"
        "    raise KeyboardInterrupt",
    )
    before = runtime.backends()
    with pytest.raises(KeyboardInterrupt):
        runtime.load(["acme-stop"])
    assert runtime.backends() == before
    assert find(runtime.plugins, "acme-stop").state == "discovered"
    with pytest.raises(KeyboardInterrupt):
        runtime.load(["acme-stop"])


def test_what_a_plugin_keeps_is_closed(runtime: Runtime, install: Callable[..., Path]) -> None:
    install("acme-late", "kept = []\ndef register(registry):\n    kept.append(registry)")
    runtime.load(["acme-late"])
    [registry] = sys.modules["acme_late"].kept
    with pytest.raises(TransactionClosedError):
        registry.register("late", "acme:Late", op="gated_delta")


def test_the_allow_list(
    runtime: Runtime, install: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("acme-good", GOOD)
    install("acme-other", "def register(registry): pass")
    monkeypatch.setenv("SWITCHRAIL_PLUGINS", "acme-other:acme-other,")
    plugins = runtime.load()
    assert find(plugins, "acme-other").state == "loaded"
    blocked = find(plugins, "acme-good")
    assert (blocked.state, "acme_good" in sys.modules) == ("blocked", False)
    assert "allow list" in (blocked.reason or "")
    monkeypatch.setenv("SWITCHRAIL_PLUGINS", "acme-goood")
    with pytest.raises(UnknownPluginError, match='nearest: "acme-good"') as caught:
        runtime.load()
    assert "acme-other" in caught.value.valid
    monkeypatch.setenv("SWITCHRAIL_PLUGINS", "")
    assert {plugin.state for plugin in Runtime().load()} == {"blocked"}
    assert find(runtime.load(["acme-good"]), "acme-good").state == "loaded"


def test_loading_again_changes_nothing(runtime: Runtime, install: Callable[..., Path]) -> None:
    install("acme-count", "calls = []\ndef register(registry):\n    calls.append(registry)")
    first = runtime.load(["acme-count"])
    assert runtime.load(["acme-count"]) == first
    runtime.discover()
    assert runtime.load(["acme-count"]) == first
    assert len(sys.modules["acme_count"].calls) == 1


def test_two_distributions_with_one_name_both_load(runtime: Runtime, install: Callable[..., Path]) -> None:
    install("acme-one", "def register(registry):\n    registry.register('a', 'a:A', op='kda')", plugin="acme")
    install("acme-two", "def register(registry):\n    registry.register('b', 'b:B', op='kda')", plugin="acme")
    states = {plugin.qualified_name: plugin.state for plugin in runtime.load(["acme"])}
    assert (states["acme-one:acme"], states["acme-two:acme"]) == ("loaded", "loaded")
    assert [backend.name for backend in runtime.backends("kda")] == ["a", "b"]


def test_plugins_load_in_the_order_of_their_distributions(
    runtime: Runtime, install: Callable[..., Path]
) -> None:
    names = ["acme-c", "acme-a", "acme-b"]
    for name in names:
        install(name, f"import sys\ndef register(registry):\n    sys.acme_order.append({name!r})")
    sys.acme_order = []  # type: ignore[attr-defined]
    try:
        runtime.load(names)
        assert sys.acme_order == sorted(names)  # type: ignore[attr-defined]
    finally:
        del sys.acme_order  # type: ignore[attr-defined]


def test_a_thread_that_asks_meanwhile_waits_for_the_result(
    runtime: Runtime, install: Callable[..., Path]
) -> None:
    install(
        "acme-slow",
        "import threading\n"
        "entered, go, calls = threading.Event(), threading.Event(), []\n"
        "def register(registry):\n"
        "    calls.append(1)\n"
        "    entered.set()\n"
        "    assert go.wait(20)\n"
        "    registry.register('slow', 'acme:Slow', op='gated_delta', priority=-1)\n",
    )
    results: list[Any] = []

    def load() -> None:
        plugins = runtime.load(["acme-slow"])
        results.append((find(plugins, "acme-slow").state, "slow" in {b.name for b in runtime.backends()}))

    import importlib

    module: Any = importlib.import_module("acme_slow")
    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert module.entered.wait(20)
    assert results == []
    module.go.set()
    for thread in threads:
        thread.join(20)
    assert results == [("loaded", True)] * 4
    assert module.calls == [1]


def test_reentry_is_refused_and_does_not_stick(runtime: Runtime, install: Callable[..., Path]) -> None:
    install("acme-good", GOOD)
    runtime._loader._loading = threading.get_ident()
    with pytest.raises(LoadReentryError):
        runtime.load(["acme-good"])
    runtime._loader._loading = None
    assert find(runtime.load(["acme-good"]), "acme-good").state == "loaded"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_during_loading_can_load(runtime: Runtime, install: Callable[..., Path]) -> None:
    install("acme-good", GOOD)
    loader = runtime._loader
    with loader._single_flight():
        child = os.fork()
        if child == 0:
            loaded = find(runtime.load(["acme-good"]), "acme-good").state == "loaded"
            os._exit(0 if loaded else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
