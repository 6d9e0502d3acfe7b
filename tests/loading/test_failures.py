"""Plugins with mistakes: the host survives, other plugins load, and the failure is reported."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import switchrail
from switchrail import Runtime
from switchrail.cli.app import app
from switchrail.errors import PluginError
from switchrail.ops import GatedDeltaBackend
from switchrail.plugins import Plugin
from switchrail.testing import isolated
from typer.testing import CliRunner

from tests.loading.conftest import Install

GOOD = """
def after(result, name):
    return result + "!"

def register(registry):
    registry.register("good", "acme_good:Good", op="gated_delta", priority=-1)
    registry.hook("acme_target.greet", after, "after")
"""
HALF = """
import switchrail

def before(name):
    return ("half",), {}

def register(registry):
    registry.register("half", "acme:Half", op="gated_delta")
    registry.register("good", "acme:Half", op="gated_delta", override=True)
    registry.hook("acme_target.greet", before)
"""


@dataclass
class Case:
    """A distribution that can't be loaded.

    Attributes:
        code: The code of the plugin's module; None if it has no module.
        reason: A part of the reason that the plugin's record must give.
        target: The target of the plugin's entry point; None for the module's `register`.
        frame: Source text that the record's traceback must have; None if this isn't checked.
        options: Options of `load`.
        state: The plugin's state afterwards.
    """

    code: str | bytes | None
    reason: str
    target: str | None = None
    frame: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    state: str = "failed"


def half(code: str, reason: str, **values: Any) -> Case:
    """A plugin that registers some backends and hooks, and then makes the mistake in `code`."""
    lines = "".join(f"    {line}\n" for line in code.splitlines())
    return Case(HALF + lines, reason, **{"frame": code.splitlines()[-1].strip(), **values})


CASES = {
    "its import raises": Case(
        "raise RuntimeError('no driver')", "RuntimeError: no driver", frame="raise Runt"
    ),
    "its syntax is wrong": Case("def register(registry:", "SyntaxError: '(' was never closed"),
    "it is not UTF-8": Case(b"name = '\xff\xfe'", "SyntaxError"),
    "its module is missing": Case(
        None, "there is no module 'acme_bad'; valid: a module that acme-bad installs"
    ),
    "its package has no such module": Case("", "there is no module 'acme_bad.ops'", "acme_bad.ops:register"),
    "it needs a module that is not installed": Case(
        "import acme_cuda_runtime",
        "ModuleNotFoundError: No module named 'acme_cuda_runtime'",
        frame="import acme",
    ),
    "its function is missing": Case(
        "def registr(registry): pass", "has no attribute 'register'; nearest: registr"
    ),
    "its function is missing in a class": Case("class A: pass", "has no attribute 'f'", "acme_bad:A.f"),
    "its entry point names a module": Case("", "such as 'acme_bad:register'", "acme_bad"),
    "its entry point is no path": Case(
        "", 'its target is "acme bad : register ?"; valid: module:attribute', "acme bad : register ?"
    ),
    "its module refuses attributes": Case(
        "def __getattr__(name): raise OSError('lazy ' + name)",
        "OSError: lazy register",
        frame="raise OSError",
    ),
    "its module takes itself out": Case("import sys\ndel sys.modules[__name__]", "KeyError: 'acme_bad'"),
    "it is no function": Case("register = 42", "it is 42, which can't be called; valid: a plain function"),
    "it is None": Case("register = None", "it is None, which can't be called"),
    "it is a class": Case(
        "class register:\n    def __init__(self, registry): pass", "it is the class register"
    ),
    "it takes nothing": Case("def register(): pass", "its parameters are (): too many positional arguments"),
    "it takes too much": Case(
        "def register(registry, config): pass", "(registry, config): missing a required argument: 'config'"
    ),
    "it takes a keyword": Case(
        "def register(*, registry): pass", "valid: a plain function that takes a switchrail"
    ),
    "it is async": Case(
        "async def register(registry): registry.x", "it is an async function, whose body would"
    ),
    "it is a generator": Case("def register(registry):\n    yield registry", "it is a generator function"),
    "it is an async generator": Case(
        "async def register(registry):\n    yield 1", "it is an async generator func"
    ),
    "it is async when it is called": Case(
        "class A:\n    async def __call__(self, registry): pass\nregister = A()", "it is an async function"
    ),
    "it returns a coroutine": Case(
        "async def work(registry): pass\nregister = lambda registry: work(registry)",
        "it returned a coroutine",
    ),
    "it exits at import": Case("import sys\nsys.exit('over')", "SystemExit: over", frame="sys.exit"),
    "it exits": half("raise SystemExit(3)", "SystemExit: 3"),
    "it raises half-way": half("raise ValueError('half-way')", "ValueError: half-way"),
    "it raises without a word": half("raise AssertionError", "AssertionError"),
    "it raises a BaseException": half("raise type('Odd', (BaseException,), {})('odd')", "Odd: odd"),
    "it raises GeneratorExit": half("raise GeneratorExit", "GeneratorExit"),
    "it recurses": half("def f(): f()\nf()", "RecursionError"),
    "its error can't be printed": half(
        "class Mute(Exception):\n    def __str__(self): raise ZeroDivisionError\nraise Mute",
        "Mute: it has no text: its __str__ raised ZeroDivisionError",
    ),
    "its error exits when printed": half(
        "class Mute(Exception):\n    def __str__(self): raise SystemExit\n    __repr__ = __str__\nraise Mute",
        "Mute: it has no text: its __str__ raised SystemExit",
    ),
    "its error is no Unicode": half(r"raise ValueError('\udcff')", r"ValueError: \udcff"),
    "it takes a name that is taken": half(
        "registry.register('users', 'a:B', op='gated_delta')", '"users" is already registered by the user'
    ),
    "it takes the name of another plugin": half(
        "registry.register('good', 'a:B', op='kda')\nregistry.register('torch', 'a:B', op='kda')",
        "by switchrail",
    ),
    "it registers for an unknown op": half(
        "registry.register('x', 'a:X', op='gated_detla')", 'nearest: "gated_delta"'
    ),
    "it registers no class": half("registry.register('x', 42, op='kda')", "ArgumentError: target is 42"),
    "it registers a class that is no backend": half(
        "registry.register('x', dict, op='kda')", "it isn't derived from switchrail.ops.backend.Backend"
    ),
    "it registers on an unknown device": half(
        "registry.register('x', 'a:X', op='kda', devices=['gpu'])", "UnknownDevice"
    ),
    "it registers a path without a module": half(
        "registry.register('x', 'X', op='kda')", 'is not "module:Qualified.name"'
    ),
    "it hooks with an unknown kind": half(
        "registry.hook('acme_target.greet', before, 'instead')", "valid: before, after"
    ),
    "its hook takes something else": half(
        "registry.hook('acme_target.greet', lambda a, b: None)", "can't be called"
    ),
    "its hook is no function": half("registry.hook('acme_target.greet', 42)", "the hook is not callable"),
    "it hooks nothing that can be called": half(
        "registry.hook('sys.maxsize', before)", "the target 'sys.maxsize' is of type int"
    ),
    "it hooks a path without a module": half("registry.hook('greet', before)", "is not a dotted path"),
    "its hooks have no order": half(
        "registry.hook('acme_target.greet', lambda name: None, before=['user'], after=['user'])",
        "OrderError: no order is possible",
        frame=None,
    ),
    "it adds one hook twice": half(
        "registry.hook('acme_target.greet', before)", "the target already has this hook", frame=None
    ),
    "its target is missing, in strict mode": half(
        "registry.hook('acme_target.gret', before)",
        "'acme_target.gret' does not exist: 'gret' was not found; nearest: greet",
        options={"strict": True},
    ),
    "it replaces one target twice, in strict mode": half(
        "registry.hook('acme_target.greet', lambda name: 'mine', 'replace')\n"
        "registry.hook('acme_target.greet', lambda name: 'other', 'replace')",
        "is replaced more than once",
        options={"strict": True},
        frame=None,
    ),
    "it loads plugins": half("switchrail.load()", "LoadReentryError: a plugin called discover or load"),
    "it looks for plugins": half("switchrail.current_runtime().discover()", "LoadReentryError"),
    "it loads plugins at import": Case(
        "import switchrail\nswitchrail.load()", "LoadReentryError", frame="switchrail.load"
    ),
    "it clears a backend of the user": half(
        "registry.clear('gated_delta', 'users')", "is registered by the user"
    ),
    "it clears a backend of another plugin": half(
        "switchrail.current_runtime().clear('short_conv', 'neighbours')", 'by plugin "acme-neighbour"'
    ),
    "it configures a backend of the user": half(
        "switchrail.current_runtime().configure('gated_delta', 'users', scale=2.0)",
        "is registered by the user",
    ),
    "it removes hooks of others": half(
        "runtime = switchrail.current_runtime()\nruntime.hooks.remove(*runtime.hooks.list())",
        "is being loaded; valid",
    ),
    "it clears all hooks": half("switchrail.current_runtime().hooks.clear()", "is being loaded; valid"),
    "it disables a hook": half(
        "runtime = switchrail.current_runtime()\nruntime.hooks.disable(*runtime.hooks.list())",
        "can't disable",
    ),
    "it enables a hook": half(
        "runtime = switchrail.current_runtime()\nruntime.hooks.enable(*runtime.hooks.list())", "can't enable"
    ),
    "it makes hooks strict": half(
        "switchrail.current_runtime().hooks.strict = True",
        "can't set `strict` while the plugin is being loaded",
    ),
    "it names the platform": half(
        "switchrail.current_runtime().use_platform('cpu')",
        "can't set the platform while the plugin is being loaded",
    ),
    "its own handler of a signal raises": half(
        "import signal\n"
        "def late(*_): raise TimeoutError('the driver is silent')\n"
        "signal.signal(signal.SIGTERM, late)\n"
        "signal.raise_signal(signal.SIGTERM)",
        "TimeoutError: the driver is silent",
    ),
    "the handler that it set at its import raises": Case(
        "import signal\n"
        "def late(*_): raise TimeoutError('the driver is silent')\n"
        "signal.signal(signal.SIGTERM, late)\n"
        "def register(registry): signal.raise_signal(signal.SIGTERM)",
        "TimeoutError: the driver is silent",
        frame="raise TimeoutError",
    ),
    "its handler raises KeyboardInterrupt": Case(
        "import signal\n"
        "def late(*_): raise KeyboardInterrupt\n"
        "signal.signal(signal.SIGTERM, late)\n"
        "def register(registry): signal.raise_signal(signal.SIGTERM)",
        "KeyboardInterrupt",
        frame="raise KeyboardInterrupt",
    ),
    "it registers without its registry, and fails": half(
        "switchrail.register('x', 'a:X', op='gated_delta')\n"
        "switchrail.hook('acme_target.greet', lambda name: None)\n"
        "switchrail.current_runtime().hooks.add('acme_target.greet', lambda name: (('x',), {}))\n"
        "with switchrail.current_runtime().transaction() as inner:\n"
        "    inner.register('y', 'a:Y', op='gated_delta')\n"
        "raise OSError('after all that')",
        "OSError: after all that",
    ),
    "it registers at import, and fails there": Case(
        "import switchrail\n"
        "switchrail.register('x', 'a:X', op='gated_delta')\n"
        "switchrail.hook('acme_target.greet', lambda name: (('x',), {}))\n"
        "raise OSError('at import')",
        "OSError: at import",
        frame="raise OSError",
    ),
    "it registers at import, and fails in its function": Case(
        "import switchrail\n"
        "switchrail.register('x', 'a:X', op='gated_delta')\n"
        "def register(registry): raise OSError('later')",
        "OSError: later",
        frame="raise OSError",
    ),
    "it registers from a thread, and fails": half(
        "import threading\n"
        "work = lambda: registry.register('threaded', 'a:T', op='gated_delta')\n"
        "thread = threading.Thread(target=work)\n"
        "thread.start()\n"
        "thread.join()\n"
        "raise OSError('after the thread')",
        "OSError: after the thread",
    ),
    "it declares a priority that is no number": Case(
        "import switchrail\n@switchrail.plugin(priority='high')\ndef register(registry): pass",
        "ArgumentError: priority is 'high'; valid: an integer from -2147483648 to 2147483647",
        frame="@switchrail.plugin",
    ),
    "it declares a name instead of a list": Case(
        "import switchrail\n@switchrail.plugin(before='acme-good')\ndef register(registry): pass",
        "before is 'acme-good'; valid: a list",
        frame="@switchrail.plugin",
    ),
    "it declares to run before and after another": Case(
        "import switchrail\n"
        "@switchrail.plugin(before=['acme-last'], after=['acme-last'])\n"
        "def register(registry): registry.register('never', 'a:N', op='gated_delta')",
        "OrderError: no order is possible: each of these must come before the next",
    ),
    "its import hangs": Case(
        "import acme_target\nacme_target.hang()",
        "its import took longer than 0.4 s; its thread keeps running; its registrations are refused",
        frame="acme_target.hang()",
        options={"timeout": 0.4},
        state="hung",
    ),
    "it hangs": half(
        "import acme_target\nacme_target.hang()",
        "its function took longer than 0.4 s",
        options={"timeout": 0.4},
        state="hung",
    ),
}


@pytest.fixture
def host(runtime: Runtime, install: Install) -> Runtime:
    """A runtime in use: it has the user's registrations and hooks, and loaded plugins."""
    importlib.import_module("acme_target")
    install("acme-good", GOOD)
    install(
        "acme-neighbour",
        "def register(registry):\n    registry.register('neighbours', 'a:N', op='short_conv', priority=-1)",
    )
    use(runtime)
    return runtime


@dataclass
class Settings:
    scale: float = 1.0


def use(runtime: Runtime) -> None:
    """Use a runtime as a program would, and load the installed plugins."""
    runtime.register("users", make_backend(), op="gated_delta", config=Settings, priority=-1)
    runtime.hook("acme_target.greet", lambda result, name: f"{result}?", "after")
    runtime.load()


def make_backend() -> type[GatedDeltaBackend]:
    return type("Users", (GatedDeltaBackend,), {"run": lambda self, *arguments: None})


def state_of(runtime: Runtime) -> tuple[Any, ...]:
    """A runtime's registrations, hooks and platform, and the code and result of the hooked function."""
    hooks = runtime.hooks
    everything = (hooks.list(), hooks.waiting(), hooks.disabled(), hooks.strict, runtime._platforms.asked)
    greet = sys.modules["acme_target"].greet
    return runtime._core.snapshot(), everything, greet.__code__, greet()


@pytest.mark.parametrize("name", CASES)
def test_a_plugin_that_fails_leaves_only_its_record(
    host: Runtime,
    install: Install,
    find: Callable[[str], Plugin],
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    case = CASES[name]
    install("acme-last", "calls = []\nregister = calls.append")
    with isolated() as other:  # a runtime in which the failing plugin was never installed
        use(other)
        expected = other.fingerprint()
    caplog.clear()
    before, fingerprint = state_of(host), host.fingerprint()
    install("acme-bad", case.code, target=case.target)
    host.discover()
    assert host.fingerprint() == fingerprint
    if case.options.get("strict"):
        with pytest.raises(PluginError, match="acme-bad:acme-bad"):
            host.load(**case.options)
    else:
        host.load(**case.options)

    record = find("acme-bad")
    assert record.state == case.state
    assert case.reason in (record.reason or "")
    if case.frame is not None:
        assert case.frame in (record.traceback or "")
        assert "acme_bad.py" in (record.traceback or "")
    assert [find(other).state for other in ("acme-good", "acme-neighbour", "acme-last")] == ["loaded"] * 3
    assert len(sys.modules["acme_last"].calls) == 2  # once for each runtime
    assert (state_of(host), host.fingerprint()) == (before, expected)
    warnings = [log.getMessage() for log in caplog.records if log.name == "switchrail"]
    assert warnings == [f"plugin acme-bad:acme-bad failed to load: {record.reason}"]

    with pytest.raises(PluginError) as caught:
        host.load(strict=True)
    assert caught.value.plugins == (record,)
    assert record.reason in str(caught.value)
    assert (record.traceback or "").rstrip() in str(caught.value)
    assert host.load() == host.plugins
    assert find("acme-bad") == record
    assert (state_of(host), host.fingerprint()) == (before, expected)

    shown = CliRunner().invoke(app, ["plugins"])
    assert shown.exit_code == 0
    [line] = [line for line in shown.output.splitlines() if line.startswith("acme-bad")]
    assert line.split()[:5] == ["acme-bad", "plugin", "acme-bad", "1.0", case.state]
    listed = json.loads(CliRunner().invoke(app, ["plugins", "--json"]).output)
    [document] = [document for document in listed if document["name"] == "acme-bad"]
    assert Plugin.from_json(json.dumps(document)) == record


def test_the_table_is_long() -> None:
    assert len(CASES) >= 20
    assert {case.state for case in CASES.values()} == {"failed", "hung"}


def test_plugins_that_fail_do_not_hide_each_other(
    host: Runtime, install: Install, find: Callable[[str], Plugin]
) -> None:
    install("acme-bad", "raise OSError('first')")
    install("acme-worse", "def register(registry): raise OSError('second')")
    install(
        "acme-one", "import switchrail\n@switchrail.plugin(before=['acme-two'])\ndef register(registry): 1/0"
    )
    install(
        "acme-two", "import switchrail\n@switchrail.plugin(before=['acme-one'])\ndef register(registry): 1/0"
    )
    host.discover()
    with pytest.raises(PluginError) as caught:
        host.load(strict=True)
    failed = ["acme-bad", "acme-one", "acme-two", "acme-worse"]
    assert sorted(plugin.name for plugin in caught.value.plugins) == failed
    for name, reason in (("acme-bad", "first"), ("acme-worse", "second")):
        assert (find(name).state, find(name).reason) == ("failed", f"OSError: {reason}")
    for name in ("acme-one", "acme-two"):
        assert "OrderError: no order is possible" in (find(name).reason or "")
        assert "acme-two:acme-two, acme-one:acme-one" in (find(name).reason or "")


def test_a_failed_import_leaves_the_modules_that_python_keeps(
    runtime: Runtime, install: Install, find: Callable[[str], Plugin]
) -> None:
    install(
        "acme-pack",
        None,
        target="acme_pack.ops:register",
        files={"acme_pack/__init__.py": "", "acme_pack/ops.py": "from . import tables\nraise OSError('no')"}
        | {"acme_pack/tables.py": ""},
    )
    runtime.load()
    assert find("acme-pack").state == "failed"
    assert {name for name in sys.modules if name.startswith("acme_pack")} == {"acme_pack", "acme_pack.tables"}
    assert not hasattr(sys.modules["acme_pack"], "ops")


def test_another_version_of_a_failed_plugin_is_tried(
    runtime: Runtime, install: Install, find: Callable[[str], Plugin]
) -> None:
    info = install("acme-fixed", "raise OSError('broken')")
    runtime.load()
    runtime.discover()
    assert find("acme-fixed").state == "failed"
    for file in info.iterdir():
        file.unlink()
    info.rmdir()
    install("acme-fixed", version="1.1")
    runtime.discover()
    assert find("acme-fixed").state == "discovered"
    runtime.load()
    assert (find("acme-fixed").state, find("acme-fixed").version) == ("loaded", "1.1")


def test_load_is_that_of_the_current_runtime() -> None:
    """Cases above rely on this: a plugin's call of `switchrail.load` is for the current, tested runtime."""
    assert switchrail.load.__module__ == "switchrail.current"
