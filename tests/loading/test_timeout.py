"""Plugins and platforms that exceed their timeout keep running, but without access to the runtime."""

from __future__ import annotations

import sys
import time

import pytest
from switchrail import Runtime, waiting
from switchrail.cli.choices import Choices, loaded_runtime
from switchrail.errors import (
    ArgumentError,
    ConfigError,
    LoadReentryError,
    PlatformPluginError,
    PlatformReentryError,
    PluginError,
    TransactionClosedError,
)
from switchrail.plugins import attempt
from switchrail.variables import TIMEOUT
from switchrail.waiting import THREADS

from tests.loading.conftest import Find, Install, end_threads

LATE = """
import acme_target, switchrail
errors = []

def register(registry):
    registry.register("late", "a:L", op="kda")
    registry.hook("acme_target.greet", lambda name: (("late",), {}))
    acme_target.hang()
    runtime = switchrail.current_runtime()
    for attempt in (
        lambda: registry.register("later", "a:L", op="kda"),
        lambda: registry.hook("acme_target.greet", lambda name: (("later",), {})),
        lambda: switchrail.register("round", "a:L", op="kda"),
        lambda: switchrail.hook("acme_target.greet", lambda name: (("round",), {})),
        lambda: runtime.hooks.add("acme_target.greet", lambda name: (("hooks",), {})),
        runtime.hooks.clear,
        runtime.load,
    ):
        try:
            attempt()
        except Exception as error:
            errors.append(error)
"""


def test_the_timeout_is_in_real_seconds(
    runtime: Runtime, install: Install, find: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (waiting, attempt):
        monkeypatch.setattr(module, "time", time)
    install("acme-late", "import acme_target\ndef register(registry): acme_target.go.wait(60)")
    start = time.monotonic()
    runtime.load(["acme-late"], timeout=0.5)
    assert time.monotonic() - start >= 0.5
    assert find("acme-late").state == "hung"


def test_registrations_after_the_timeout_are_refused(runtime: Runtime, install: Install, find: Find) -> None:
    import acme_target

    install("acme-late", LATE)
    install("acme-next", "def register(registry): registry.register('next', 'a:N', op='kda')")
    hook = runtime.hook("acme_target.greet", lambda result, name: result + "!", "after")
    runtime.load(["acme-late", "acme-next"], timeout=0.5)
    record = find("acme-late")
    assert record.state == "hung"
    assert record.reason == (
        "its function took longer than 0.5 s; its thread keeps running; its registrations are refused"
    )
    assert "Stack of its thread (most recent call last):" in (record.traceback or "")
    assert "acme_target.hang()" in (record.traceback or "")
    assert find("acme-next").state == "loaded"
    before = runtime.fingerprint(), runtime._core.snapshot(), runtime.hooks.list()
    with pytest.raises(PluginError, match="its function took longer"):
        runtime.load(["acme-late", "acme-next"], strict=True)
    end_threads()
    errors = sys.modules["acme_late"].errors
    assert [type(error) for error in errors] == [TransactionClosedError] * 6 + [LoadReentryError]
    assert "the transaction of plugin acme-late:acme-late is closed" in str(errors[2])
    assert (runtime.fingerprint(), runtime._core.snapshot(), runtime.hooks.list()) == before
    assert runtime.hooks.list() == (hook,)
    assert acme_target.greet() == "hello world!"
    assert find("acme-late") == record


def test_an_import_that_ends_too_late_does_not_count(runtime: Runtime, install: Install, find: Find) -> None:
    install(
        "acme-slow",
        "import acme_target, switchrail\nacme_target.hang()\n"
        "try: switchrail.register('slow', 'a:S', op='kda')\n"
        "except Exception as caught: error = caught\n"
        "calls = []\nregister = calls.append\n",
    )
    runtime.load(["acme-slow"], timeout=0.2)
    assert (find("acme-slow").state, (find("acme-slow").reason or "")[:11]) == ("hung", "its import ")
    end_threads()
    module = sys.modules["acme_slow"]
    assert isinstance(module.error, TransactionClosedError)
    assert runtime.load() == runtime.plugins
    assert module.calls == []
    assert find("acme-slow").state == "hung"


def test_the_time_is_that_of_import_and_function_together(
    runtime: Runtime, install: Install, find: Find
) -> None:
    half = "import acme_target\nacme_target.seconds += 0.6\ndef register(registry):\n    "
    install("acme-half", half + "acme_target.seconds += 0.6\n    acme_target.go.wait(60)\n")
    install("acme-other", half + "acme_target.seconds += 0.2\n")
    runtime.load(["acme-half", "acme-other"], timeout=0.9)
    assert (find("acme-half").reason or "").startswith("its function took longer than 0.9 s")
    assert find("acme-other").state == "loaded"


def test_plugins_within_the_timeout_load(
    runtime: Runtime, install: Install, find: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    import acme_target

    install(
        "acme-fast",
        "import switchrail, threading\n"
        "imported = threading.current_thread().name\n"
        "def register(registry):\n"
        "    switchrail.register('fast', 'a:F', op='kda')\n"
        "    registry.hook('acme_target.greet', lambda name: (('you',), {}))\n",
    )
    install("acme-exit", "raise SystemExit(3)")
    install("acme-again", "import switchrail\ndef register(registry): switchrail.load()")
    monkeypatch.setenv(TIMEOUT, "30")
    runtime.load()
    assert sys.modules["acme_fast"].imported == f"{THREADS}plugin acme-fast:acme-fast"
    assert runtime.backend("kda", "fast").origin == 'plugin "acme-fast" of acme-fast 1.0'
    assert acme_target.greet() == "hello you"
    assert (find("acme-exit").state, find("acme-exit").reason) == ("failed", "SystemExit: 3")
    assert (find("acme-again").reason or "").startswith("LoadReentryError")


def test_a_plugin_that_waits_for_its_own_load(runtime: Runtime, install: Install, find: Find) -> None:
    install(
        "acme-knot",
        "import acme_target, switchrail, threading\n"
        "results = []\n"
        "def load(): results.append(switchrail.load())\n"
        "def register(registry):\n"
        "    global thread\n"
        "    thread = threading.Thread(target=load)\n"
        "    thread.start()\n"
        "    acme_target.seconds += 1000\n"
        "    thread.join()\n",
    )
    plugins = runtime.load(["acme-knot"], timeout=0.5)
    assert find("acme-knot").state == "hung"
    module = sys.modules["acme_knot"]
    module.thread.join()
    [result] = module.results
    assert {plugin.name for plugin in result} == {plugin.name for plugin in plugins}
    assert find("acme-knot").state == "hung"


def test_the_log_names_the_code_that_it_waits_for(
    runtime: Runtime, install: Install, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import acme_target

    class Slow:
        """A clock that advances a little with each reading, once a plugin hangs."""

        seconds = 0.0

        def monotonic(self) -> float:
            self.seconds += 0.01 * (acme_target.seconds > 0)
            return self.seconds

    monkeypatch.setattr(waiting, "time", Slow())
    monkeypatch.setattr(waiting, "TOLD_AFTER", 0.05)
    install("acme-late", LATE)
    install("acme-slow", "import acme_target\nacme_target.hang()\ndef register(registry): pass")
    runtime.load(["acme-late", "acme-slow"], timeout=0.6)
    told = [log.getMessage() for log in caplog.records if log.getMessage().startswith("waiting for")]
    for plugin, what in (("acme-late", "its function"), ("acme-slow", "its import")):
        name = f"waiting for plugin {plugin}:{plugin}: {what} has taken 0 s so far; its time limit ends in "
        assert len([line for line in told if line.startswith(name)]) == 4, told  # 0.05, 0.1, 0.2 and 0.4 s


def test_the_precedence_of_timeouts(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call's timeout takes precedence, then the environment's, then the runtime's; a new runtime has
    none."""
    seconds = runtime._loader.seconds
    assert runtime.default_timeout is None
    assert seconds() is None
    runtime.default_timeout = 60
    assert seconds() == 60
    monkeypatch.setenv(TIMEOUT, "7")
    assert (seconds(), seconds(3)) == (7, 3)
    monkeypatch.setenv(TIMEOUT, " none")
    assert (seconds(), seconds(3)) == (None, 3)
    monkeypatch.setenv(TIMEOUT, "soon")
    with pytest.raises(ConfigError, match=r"'soon'; valid: a number of seconds above 0, .* or none"):
        seconds()
    with pytest.raises(ConfigError, match="timeout is 0; valid: a number of seconds above 0"):
        runtime.default_timeout = 0
    with pytest.raises(ArgumentError, match="timeout is '1'"):
        runtime.default_timeout = "1"  # type: ignore[assignment]
    assert runtime.default_timeout == 60


def test_the_command_waits_a_minute(runtime: Runtime) -> None:
    assert loaded_runtime(Choices()) is runtime
    assert runtime.default_timeout == waiting.PATIENCE == 60


PLATFORM_CODE = {
    "its import": "import acme_target\nacme_target.hang()\ndef activate(): return None\n",
    "its function": "def activate():\n    import acme_target\n    acme_target.hang()\n",
    "the import of its class": "def activate(): return 'acme_class:Class'\n",
}


@pytest.mark.parametrize("what", PLATFORM_CODE)
def test_a_platform_that_hangs(
    runtime: Runtime,
    install: Install,
    find: Find,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    what: str,
) -> None:
    install(
        "acme-device",
        PLATFORM_CODE[what],
        groups={"switchrail.platforms": "acme = acme_device:activate"},
        files={"acme_class.py": "import acme_target\nacme_target.hang()\n"},
    )
    runtime.default_timeout = 0.5
    told = "its function" if what == "its import" else what  # the function includes its module's import
    with pytest.raises(PlatformPluginError, match=f"{told} took longer than 0.5 s; its thread keeps running"):
        _ = runtime.platform
    assert (find("acme").state, (find("acme").reason or "")[: len(told)]) == ("hung", told)
    assert "acme_target.hang()" in (find("acme").traceback or "")
    caplog.clear()
    with pytest.raises(PlatformPluginError, match=f"failed: hung: {told} took longer"):
        _ = runtime.platform
    assert caplog.text == ""  # the plugin isn't called again
    assert runtime.find_platform("cpu").kind == "cpu"


def test_a_platform_that_requests_the_platform_is_refused_in_its_thread_too(
    runtime: Runtime, install: Install
) -> None:
    install(
        "acme-device",
        "import switchrail\n"
        "errors = []\n"
        "def activate():\n"
        "    for ask in (lambda: switchrail.current_platform.kind, switchrail.load):\n"
        "        try: ask()\n"
        "        except Exception as error: errors.append(error)\n"
        "    return 'switchrail.platforms:CpuPlatform'\n",
        groups={"switchrail.platforms": "acme = acme_device:activate"},
    )
    runtime.default_timeout = 30
    assert runtime.platform.kind == "cpu"
    assert [type(error) for error in sys.modules["acme_device"].errors] == [PlatformReentryError] * 2


def test_a_platforms_registrations_during_a_load_are_the_plugins(
    runtime: Runtime, install: Install, find: Find
) -> None:
    install(
        "acme-device",
        "import switchrail\ndef activate(): switchrail.register('device', 'a:D', op='kda')\n",
        groups={"switchrail.platforms": "acme = acme_device:activate"},
    )
    install("acme-asks", "import switchrail\ndef register(registry): switchrail.current_platform.kind")
    runtime.default_timeout = 30
    runtime.load(["acme-asks"], strict=True)
    assert runtime.backend("kda", "device").origin == 'plugin "acme-asks" of acme-asks 1.0'
