"""The choice of a runtime's platform: by name, by plugin, or by detection."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import switchrail
import torch
from switchrail import Runtime
from switchrail.cli.app import app
from switchrail.errors import PlatformError, PlatformPluginError, PlatformReentryError
from switchrail.platforms import CpuHardware, CpuPlatform, CpuServing, cuda
from typer.testing import CliRunner

from tests.forking import forked

pytestmark = pytest.mark.usefixtures("no_cuda")

ACTIVE = """
from switchrail.platforms import CpuHardware, Platform

calls = []
answer = "{module}:Vendor"


class Hardware(CpuHardware):
    kind = "oot:{module}"


class Vendor(Platform):
    hardware_class = Hardware


def activate():
    calls.append(1)
    return answer
"""


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "gpus", lambda toolkit: ())


@pytest.fixture
def vendor(install: Callable[..., Path]) -> Callable[..., Any]:
    """Returns a function that installs a vendor's platform, and returns its imported module."""

    def vendor(distribution: str, **arguments: str) -> Any:
        module = distribution.replace("-", "_")
        install(distribution, ACTIVE.format(module=module), **arguments)
        return __import__(module)

    return vendor


def test_without_plugins_a_built_in_platform_is_found(runtime: Runtime) -> None:
    assert runtime.platform is runtime.platform is switchrail.current_platform
    assert type(runtime.platform) is CpuPlatform


def test_the_plugin_that_activates(runtime: Runtime, vendor: Callable[..., Any]) -> None:
    active, declining = vendor("acme"), vendor("umbrella")
    declining.answer = None
    assert type(runtime.platform) is active.Vendor
    assert runtime.platform is runtime.platform
    assert runtime.platform.kind == "oot:acme"
    assert runtime.platform.is_out_of_tree()
    assert (active.calls, declining.calls) == ([1], [1])


def test_all_decline(runtime: Runtime, vendor: Callable[..., Any]) -> None:
    vendor("acme").answer = None
    assert type(runtime.platform) is CpuPlatform


def test_several_activate(
    runtime: Runtime, vendor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor("acme"), vendor("umbrella", name="brolly")
    with pytest.raises(
        PlatformError, match="2 platforms are active: acme, brolly; set SWITCHRAIL_PLATFORM to one of them"
    ) as caught:
        runtime.platform  # noqa: B018
    assert caught.value.valid == ("acme", "brolly")
    monkeypatch.setenv("SWITCHRAIL_PLATFORM", "brolly")  # a failed choice is tried again
    assert runtime.platform.kind == "oot:umbrella"


def test_two_with_one_name(
    runtime: Runtime, vendor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor("acme-one", name="acme"), vendor("acme-two", name="acme")
    with pytest.raises(PlatformError, match="are active: acme-one:acme, acme-two:acme;"):
        runtime.platform  # noqa: B018
    monkeypatch.setenv("SWITCHRAIL_PLATFORM", "acme")
    with pytest.raises(
        PlatformError, match="2 platforms have the name 'acme'; valid: acme-one:acme, acme-two"
    ):
        runtime.platform  # noqa: B018
    monkeypatch.setenv("SWITCHRAIL_PLATFORM", "Acme_Two:acme")
    assert runtime.platform.kind == "oot:acme_two"


@pytest.mark.parametrize("name", ["acme", "acme:acme", "cpu"])
def test_by_environment(
    name: str, runtime: Runtime, vendor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    acme, other = vendor("acme"), vendor("umbrella")
    monkeypatch.setenv("SWITCHRAIL_PLATFORM", name)
    assert runtime.platform.kind == ("cpu" if name == "cpu" else "oot:acme")
    assert (len(acme.calls), other.calls) == (0 if name == "cpu" else 1, [])
    assert runtime._platforms.asked is None


def test_declining_is_an_error_for_a_named_platform(
    runtime: Runtime, vendor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor("acme").answer = None
    monkeypatch.setenv("SWITCHRAIL_PLATFORM", "acme")
    for ask in (lambda: runtime.platform, lambda: runtime.use_platform("acme")):
        with pytest.raises(PlatformError, match="platform 'acme' of acme declines"):
            ask()


@pytest.mark.parametrize("loaded", [False, True])
def test_an_unknown_name(
    loaded: bool, runtime: Runtime, vendor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor("acme")
    if loaded:
        runtime.load()
    monkeypatch.setenv("SWITCHRAIL_PLATFORM", "amce")
    with pytest.raises(PlatformError, match=r"amce.*nearest.*acme") as caught:
        runtime.platform  # noqa: B018
    assert caught.value.nearest[0] == "acme"
    monkeypatch.delenv("SWITCHRAIL_PLATFORM")
    with pytest.raises(PlatformError, match=r"no device 'acmee' here; nearest: acme; valid: cpu, acme$"):
        runtime.use_platform("acmee")
    assert runtime.platform.kind == "oot:acme"


def test_a_device_that_is_named_and_not_there(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHRAIL_PLATFORM", "cuda")
    with pytest.raises(PlatformError, match=r"no device 'cuda' here; valid: cpu$"):
        runtime.platform  # noqa: B018


@pytest.mark.parametrize("how", ["acme", "acme:acme", "instance", "path", "device"])
def test_by_call(
    how: str, runtime: Runtime, vendor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWITCHRAIL_PLATFORM", "tpu")  # `use_platform` takes precedence
    acme = vendor("acme")
    runtime.use_platform(
        {"instance": acme.Vendor(), "path": "acme:Vendor", "device": torch.device("cpu")}.get(how, how)
    )
    expected = CpuPlatform if how == "device" else acme.Vendor
    assert type(runtime.platform) is expected
    asked = runtime._platforms.asked
    assert asked == {"instance": "acme:Vendor:cpu", "path": "acme:Vendor", "device": "cpu"}.get(how, how)
    assert asked is not None
    assert type(Runtime().find_platform(asked)) is expected


def test_a_failed_call_changes_nothing(runtime: Runtime) -> None:
    runtime.use_platform("cpu")
    before = runtime.platform
    with pytest.raises(PlatformError):
        runtime.use_platform("cuda:9")
    assert runtime.platform is before
    assert runtime._platforms.asked == "cpu"


def test_the_allow_list_of_plugins_hides_no_platform(
    runtime: Runtime, vendor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor("acme")
    monkeypatch.setenv("SWITCHRAIL_PLUGINS", "")
    runtime.load()
    assert runtime.platform.kind == "oot:acme"


def test_a_platform_that_differs_from_the_lock_is_not_imported(
    runtime: Runtime, install: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from switchrail import _core

    folder = install("acme", "raise SystemExit('imported')").parent
    lock = tmp_path / "locked.json"
    lock.write_text(_core.Lock.of(_core.discover([str(folder)])).to_json())
    (folder / "acme.py").write_text("raise SystemExit('imported, and changed')")
    monkeypatch.setenv("SWITCHRAIL_LOCK", str(lock))
    runtime.discover([folder])
    with pytest.raises(PlatformPluginError, match="blocked: ") as caught:
        runtime.platform  # noqa: B018
    assert "imported" not in str(caught.value)


FAILURES = {
    "no module": ("import nowhere_at_all", "activate", "nowhere_at_all"),
    "import": ("1 / 0", "activate", "ZeroDivisionError"),
    "exit": ("raise SystemExit(3)", "activate", "SystemExit"),
    "no function": ("", "activate", "has no attribute 'activate'"),
    "class": ("class activate: pass", "activate", "valid: a function without arguments"),
    "value": ("activate = 3", "activate", "its entry point is 3; valid: a function without arguments"),
    "arguments": ("def activate(registry): pass", "activate", "missing 1 required positional argument"),
    "raises": ("def activate(): raise KeyError('driver')", "activate", "KeyError: 'driver'"),
    "answer": ("def activate(): return 5", "activate", "it returned 5; valid: a class path"),
    "path": ("def activate(): return 'acme.Platform'", "activate", "valid: a class path 'module:Class'"),
    "path to nothing": ("def activate(): return 'acme:Nothing'", "activate", "no class 'acme:Nothing'"),
    "path to no module": ("def activate(): return 'acmee:X'", "activate", "No module named 'acmee'"),
    "no class": ("X = 1\ndef activate(): return 'acme:X'", "activate", "'acme:X' is 1; valid: a class"),
    "other class": ("def activate(): return 'builtins:dict'", "activate", "derived from switchrail.Platform"),
    "no kind": (
        "from switchrail import Platform\ndef activate(): return 'switchrail:Platform'",
        "activate",
        "of kind 'unspecified'; valid: .*oot:NAME",
    ),
    "broken class": (
        "from switchrail import Platform\n"
        "class Broken(Platform):\n    def __init__(self, device=None): raise OSError('no firmware')\n"
        "def activate(): return 'acme:Broken'",
        "activate",
        "OSError: no firmware",
    ),
}


@pytest.mark.parametrize("case", FAILURES)
def test_a_plugin_that_fails(
    case: str,
    runtime: Runtime,
    install: Callable[..., Path],
    vendor: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A failing platform plugin is an error, unless another platform is named."""
    code, target, words = FAILURES[case]
    install("acme", code, target=target)
    vendor("umbrella").answer = None
    for _ in range(2):
        with pytest.raises(
            PlatformPluginError, match=rf"(?s)acme:acme \(acme:activate\) failed: .*{words}"
        ) as caught:
            runtime.platform  # noqa: B018
        error = caught.value
        assert error.plugin == "acme:acme"
        assert "Traceback" in error.traceback
        assert error.__cause__ is not None
        assert pickle.loads(pickle.dumps(error)).traceback == error.traceback
        sys.modules.pop("acme", None)
    monkeypatch.setenv("SWITCHRAIL_PLATFORM", "cpu")
    assert runtime.platform.kind == "cpu"


def test_an_interrupt_passes(runtime: Runtime, install: Callable[..., Path]) -> None:
    install("acme", "def activate(): raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        runtime.platform  # noqa: B018


def check_reentry(runtime: Runtime, did: str) -> None:
    """Checks that choosing a platform fails, with an error that names the plugin's forbidden call, `did`."""
    with pytest.raises(PlatformPluginError, match=f"{did} while the platform was being chosen") as caught:
        runtime.platform  # noqa: B018
    assert isinstance(caught.value.__cause__, PlatformReentryError)


@pytest.mark.parametrize(
    "asks",
    ["current_platform", "current_runtime().find_platform('acme')", "current_runtime().use_platform('cpu')"],
)
def test_a_plugin_that_asks_for_the_platform(
    asks: str, runtime: Runtime, install: Callable[..., Path]
) -> None:
    install("acme", f"import switchrail\ndef activate(): return switchrail.{asks}")
    check_reentry(runtime, "asked for the platform")


def test_a_general_plugin_may_ask_while_it_is_loaded(runtime: Runtime, install: Callable[..., Path]) -> None:
    code = (
        "import switchrail\nkinds = []\n"
        "def register(registry):\n    kinds.append(switchrail.current_platform.kind)"
    )
    info = install("acme", code, target="register")
    (info / "entry_points.txt").write_text("[switchrail.plugins]\nacme = acme:register\n")
    (plugin,) = [plugin for plugin in runtime.load() if plugin.name == "acme"]
    assert plugin.state == "loaded", plugin.reason
    assert sys.modules["acme"].kinds == ["cpu"]


def test_many_threads_choose_once(runtime: Runtime, vendor: Callable[..., Any]) -> None:
    acme = vendor("acme")
    acme.activate = lambda: (time.sleep(0.05), acme.calls.append(1), acme.answer)[-1]
    barrier = threading.Barrier(16)

    def ask(_: int) -> Any:
        barrier.wait()
        return runtime.platform

    with ThreadPoolExecutor(16) as pool:
        found = set(map(id, pool.map(ask, range(16))))
    assert found == {id(runtime.platform)}
    assert acme.calls == [1]


def test_a_failure_is_not_kept_for_the_threads_that_wait(
    runtime: Runtime, vendor: Callable[..., Any]
) -> None:
    acme = vendor("acme")

    def activate() -> str:
        acme.calls.append(1)
        if len(acme.calls) <= 3:
            time.sleep(0.01)
            raise OSError("not yet")
        return acme.answer

    acme.activate = activate

    def ask(_: int) -> Any:
        try:
            return runtime.platform
        except PlatformPluginError as error:
            return error

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(8)))
    failed = [one for one in found if isinstance(one, PlatformPluginError)]
    assert len(failed) == 3
    assert {id(one) for one in found if one not in failed} == {id(runtime.platform)}
    assert len(acme.calls) == 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_chooses_for_itself(runtime: Runtime, vendor: Callable[..., Any]) -> None:
    """A forked child makes a choice of its own, even if a thread of the parent was choosing.

    The child doesn't have that thread.
    """
    acme = vendor("acme")
    began, go_on = threading.Event(), threading.Event()
    parent = os.getpid()

    def activate() -> str:
        began.set()
        if os.getpid() == parent:
            assert go_on.wait(60)
        return acme.answer

    acme.activate = activate
    thread = threading.Thread(target=lambda: runtime.platform)
    thread.start()
    assert began.wait(60)

    def work() -> None:
        signal.alarm(60)
        assert runtime.platform.kind == "oot:acme"

    try:
        forked(work)()
    finally:
        go_on.set()
        thread.join()
    assert runtime.platform.kind == "oot:acme"


def test_threads_that_load_and_threads_that_ask(
    runtime: Runtime, vendor: Callable[..., Any], install: Any
) -> None:
    """Plugins that use the platform while they load, and other threads that use it, never deadlock."""
    vendor("acme")
    code = (
        "import switchrail, time\n"
        "def register(registry):\n    time.sleep(0.05)\n    switchrail.current_platform"
    )
    info = install("beta", code, target="register")
    (info / "entry_points.txt").write_text("[switchrail.plugins]\nbeta = beta:register\n")
    barrier = threading.Barrier(4)

    def work(number: int) -> Any:
        barrier.wait()
        return runtime.load() and None if number % 2 else runtime.platform

    with ThreadPoolExecutor(4) as pool:
        found = [future.result() for future in [pool.submit(work, number) for number in range(4)]]
    assert {one.kind for one in found if one is not None} == {"oot:acme"}
    assert {plugin.state for plugin in runtime.plugins if plugin.name == "beta"} == {"loaded"}


DEVICES = """
    @classmethod
    def devices(cls):
        return ("cards:0", "cards:3")

    def __init__(self, device=None):
        self.device = device or "cards:0"

"""


def test_a_device_of_a_plugins_by_number(runtime: Runtime, install: Callable[..., Path]) -> None:
    code = ACTIVE.format(module="acme")
    install("acme", code.replace('"oot:acme"\n', '"oot:acme"\n' + DEVICES))
    assert runtime.find_platform("acme").device == "cards:0"
    for name in ("acme:3", "acme:acme:3"):
        assert runtime.find_platform(name).device == "cards:3"
    with pytest.raises(PlatformError, match=r"no device 'acme:1' here; valid: acme:0, acme:3$") as caught:
        runtime.find_platform("acme:1")
    assert not isinstance(caught.value, PlatformPluginError)
    runtime.use_platform("acme:3")
    assert runtime.platform.device == "cards:3"
    assert runtime._platforms.asked == "acme:3"


def test_a_plugin_that_lists_no_devices(runtime: Runtime, install: Callable[..., Path]) -> None:
    code = ACTIVE.format(module="acme").replace("CpuHardware, ", "Hardware as Bare, ")
    install("acme", code.replace("(CpuHardware)", "(Bare)"))
    with pytest.raises(
        PlatformError, match=r"no device 'acme:0' here; valid: acme without a number, as devices"
    ):
        runtime.find_platform("acme:0")


def test_one_platform_for_a_device(runtime: Runtime, vendor: Callable[..., Any]) -> None:
    """However a platform and device are named, a runtime returns the same object.

    An instance is returned as it is, and replaces that object once `use_platform` sets it.
    """
    acme = vendor("acme")
    found = runtime.find_platform("acme")
    assert runtime.platform is found
    assert runtime.find_platform("acme:Vendor") is runtime.find_platform("acme:Vendor:cpu") is found
    assert runtime.find_platform("cpu") is runtime.find_platform(torch.device("cpu")) is not found
    own = acme.Vendor()
    assert runtime.find_platform(own) is own is not found
    runtime.use_platform(own)
    assert runtime.platform is runtime.find_platform("acme") is own
    assert Runtime().find_platform("acme") is not own


def test_an_object_of_no_kind(runtime: Runtime) -> None:
    for use in (runtime.use_platform, runtime.find_platform):
        with pytest.raises(PlatformError, match=r"Platform is of kind 'unspecified'; valid: .*oot:NAME"):
            use(switchrail.Platform())
    nameless = type(
        "Nameless", (CpuPlatform,), {"hardware_class": type("H", (CpuHardware,), {"kind": "oot:"})}
    )
    with pytest.raises(PlatformError, match=r"Nameless is of kind 'oot:'; valid: .*oot:NAME"):
        runtime.use_platform(nameless())


def test_names_of_distributions_are_normalised_as_by_pip(
    runtime: Runtime, vendor: Callable[..., Any]
) -> None:
    vendor("Acme_Two")
    assert runtime.find_platform("acme-two:Acme_Two").kind == "oot:Acme_Two"


def test_a_class_of_the_users_own_with_a_kind_that_is_built_in(runtime: Runtime, install: Any) -> None:
    install("acme", "from switchrail.platforms import CpuPlatform\nclass Own(CpuPlatform): pass")
    own = __import__("acme").Own()
    runtime.use_platform(own)
    assert runtime._platforms.asked == "acme:Own:cpu"
    runtime.use_platform(CpuPlatform())
    assert runtime._platforms.asked == "cpu"


def test_a_class_of_the_program(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    # as when Python runs a script: `find_spec("__main__")` would raise an error
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.setattr(sys.modules["__main__"], "Own", type("Own", (CpuPlatform,), {}), raising=False)
    assert type(runtime.find_platform("__main__:Own")).__name__ == "Own"
    with pytest.raises(PlatformError, match="no class '__main__:Owm'"):
        runtime.find_platform("__main__:Owm")


def states(runtime: Runtime) -> dict[str, tuple[str, str | None]]:
    return {
        plugin.name: (plugin.state, plugin.reason)
        for plugin in runtime.plugins
        if plugin.group == "switchrail.platforms"
    }


def test_the_records_have_the_outcome_of_each_plugin(
    runtime: Runtime, vendor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    acme, umbrella = vendor("acme"), vendor("umbrella")
    umbrella.answer = None
    found = {plugin.name: plugin.state for plugin in runtime.load()}
    assert (found["acme"], found["umbrella"]) == ("discovered", "discovered")
    before = runtime.fingerprint()
    declines = ("blocked", "it declines: it finds no device of its own here")
    assert runtime.platform.kind == "oot:acme"
    assert states(runtime) == {"acme": ("loaded", None), "umbrella": declines}
    assert {plugin.state for plugin in runtime.load() if plugin.name == "acme"} == {"loaded"}
    assert {plugin.state for plugin in runtime.discover() if plugin.name == "acme"} == {"loaded"}
    assert runtime.fingerprint() == before, "asking for the platform does not change decisions"
    runtime.use_platform("cpu")
    assert states(runtime)["acme"] == ("discovered", None)
    acme.answer = 5
    with pytest.raises(PlatformPluginError):
        runtime.use_platform("acme")
    assert states(runtime)["acme"] == ("discovered", None), "a failed `use_platform` changes no record"
    other = Runtime()
    with pytest.raises(PlatformPluginError) as caught:
        other.platform  # noqa: B018
    (record,) = [plugin for plugin in other.plugins if plugin.name == "acme"]
    assert (record.state, record.traceback) == ("failed", caught.value.traceback)
    assert record.reason.startswith("TypeError: it returned 5; valid: a class path")
    acme.answer = "acme:Vendor"
    assert other.platform.kind == "oot:acme"
    assert states(other) == {"acme": ("loaded", None), "umbrella": declines}


def test_on_the_command_line(runtime: Runtime, vendor: Callable[..., Any]) -> None:
    acme, umbrella = vendor("acme"), vendor("umbrella")

    def listed() -> tuple[dict[str, str], str]:
        done = CliRunner().invoke(app, ["plugins", "--json"])
        assert done.exit_code == 0
        found = json.loads(done.stdout)
        reasons.update({plugin["name"]: plugin.get("reason") for plugin in found})
        return {plugin["name"]: plugin["state"] for plugin in found}, done.stderr

    reasons: dict[str, str | None] = {}

    rows = [line.split()[:2] for line in CliRunner().invoke(app, ["plugins"]).stdout.splitlines()]
    assert ["acme", "platform"] in rows
    found, told = listed()
    assert (found["acme"], found["umbrella"]) == ("discovered", "discovered")
    assert "2 platforms are active: acme, umbrella; set SWITCHRAIL_PLATFORM" in told
    acme.answer = 5
    found, told = listed()
    assert (found["acme"], found["umbrella"]) == ("failed", "discovered")
    assert (reasons["acme"] or "").startswith("TypeError: it returned 5")
    assert told == "", "the error is only in the plugin's record"
    acme.answer, umbrella.answer = None, "umbrella:Vendor"
    found, told = listed()
    assert (found["acme"], found["umbrella"], told) == ("blocked", "loaded", "")


def test_a_plugin_that_loads_plugins(runtime: Runtime, install: Callable[..., Path]) -> None:
    """A platform plugin that loads plugins is refused.

    Otherwise it could wait for a thread whose plugin waits for the platform.
    """
    install("acme", "import switchrail\ndef activate(): return switchrail.current_runtime().load()")
    check_reentry(runtime, "loaded plugins")


def test_two_threads_that_choose_and_load(runtime: Runtime, install: Callable[..., Path]) -> None:
    """A platform plugin that discovers plugins or asks for a platform is refused.

    Otherwise it could wait for a thread that loads plugins, while that thread waits for the platform.
    """
    install(
        "acme",
        "import switchrail, threading\n"
        "choosing, loading, errors = threading.Event(), threading.Event(), []\n"
        "def activate():\n"
        "    choosing.set()\n"
        "    assert loading.wait(60)\n"
        "    runtime = switchrail.current_runtime()\n"
        "    for ask in (runtime.discover, lambda: runtime.find_platform('acme')):\n"
        "        try: ask()\n"
        "        except Exception as error: errors.append(error)\n",
    )
    info = install(
        "umbrella",
        "import acme, switchrail\n"
        "def register(registry):\n"
        "    acme.loading.set()\n"
        "    assert switchrail.current_platform.kind == 'cpu'\n",
        target="register",
    )
    (info / "entry_points.txt").write_text("[switchrail.plugins]\numbrella = umbrella:register\n")
    acme = __import__("acme")
    chooser = threading.Thread(target=lambda: runtime.platform, daemon=True)
    loader = threading.Thread(target=lambda: runtime.load(["umbrella"]), daemon=True)
    chooser.start()
    assert acme.choosing.wait(60)
    loader.start()
    for thread in (chooser, loader):
        thread.join(60)
        assert not thread.is_alive(), "each waits for the other"
    assert [type(error) for error in acme.errors] == [PlatformReentryError] * 2
    states = {plugin.name: plugin.state for plugin in runtime.plugins}
    assert (states["acme"], states["umbrella"]) == ("blocked", "loaded")


def test_a_signal_handlers_exception_passes(
    runtime: Runtime, install: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("acme", "import signal\ndef activate(): signal.raise_signal(signal.SIGUSR1)")

    def handler(number: int, frame: Any) -> None:
        raise SystemExit(7)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(SystemExit):
            runtime.platform  # noqa: B018
    finally:
        signal.signal(signal.SIGUSR1, before)
    monkeypatch.setenv("SWITCHRAIL_PLATFORM", "cpu")
    assert runtime.platform.is_cpu()


GENERAL = """
import switchrail
def register(registry): registry.register("{name}_ops", "x:Y", op="attention", devices=["oot:{name}"])
"""


@pytest.mark.parametrize("how", ["acme", "acme:acme", "acme:0", "object", "cpu"])
@pytest.mark.parametrize("environment", ["cpu", "umbrella"])
def test_a_call_comes_before_the_environment_for_general_plugins_too(
    how: str,
    environment: str,
    runtime: Runtime,
    install: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("acme", "umbrella"):
        code = ACTIVE.format(module=name) + GENERAL.format(name=name)
        devices = '    @classmethod\n    def devices(cls): return ("cpu:0",)\n'
        info = install(name, code.replace(f'"oot:{name}"\n', f'"oot:{name}"\n{devices}'))
        with (info / "entry_points.txt").open("a") as file:
            file.write(f"[switchrail.plugins]\n{name}_ops = {name}:register\n")
    monkeypatch.setenv("SWITCHRAIL_PLATFORM", environment)
    runtime.use_platform(__import__("acme").Vendor() if how == "object" else how)
    found = {plugin.name: plugin.state for plugin in runtime.load()}
    general = (found["acme_ops"], found["umbrella_ops"])
    assert general == {"object": ("loaded", "loaded"), "cpu": ("blocked", "blocked")}.get(
        how, ("loaded", "blocked")
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_initialises_for_itself() -> None:
    """A forked child initialises its own platform, even if a thread of the parent was initialising one.

    The child doesn't have that thread.
    """
    began, go_on = threading.Event(), threading.Event()
    parent, calls = os.getpid(), []

    class Slow(CpuServing):
        def initialize(self) -> None:
            calls.append(1)
            began.set()
            if os.getpid() == parent:
                assert go_on.wait(60)

    platform = type("SlowPlatform", (CpuPlatform,), {"serving_class": Slow})()
    thread = threading.Thread(target=platform.initialize)
    thread.start()
    assert began.wait(60)

    def work() -> None:
        signal.alarm(60)
        platform.initialize()
        assert len(calls) == 2

    try:
        forked(work)()
    finally:
        go_on.set()
        thread.join()
    platform.initialize()
    assert len(calls) == 1
