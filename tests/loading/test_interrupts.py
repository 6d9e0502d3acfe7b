"""An interrupt of `load` propagates, and leaves the runtime as it was before the call."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import switchrail
from switchrail import Runtime, _core
from switchrail.hooks import Hooks
from switchrail.plugins import loader
from switchrail.staging import Staging

from tests.loading.conftest import Find, Install

BOTH = """
calls = []

def register(registry):
    calls.append(registry)
    registry.register("{0}", "a:B", op="kda")
    registry.register("torch", "a:B", op="short_conv", override=True)
    registry.hook("acme_target.greet", lambda result, name: result + " {0}", "after")
"""


def state_of(runtime: Runtime) -> tuple[Any, ...]:
    """A runtime's fingerprint, backends, hooks and plugins, and the result of the hooked function."""
    import acme_target

    hooks = runtime.hooks
    everything = hooks.list(), hooks.waiting(), hooks.disabled()
    backends = runtime._core.snapshot().backends
    return runtime.fingerprint(), backends, everything, runtime.plugins, acme_target.greet()


@pytest.fixture
def host(runtime: Runtime, install: Install) -> Runtime:
    import acme_target  # noqa: F401

    install("acme-aa", BOTH.format("first"))
    runtime.register("torch", "u:U", op="short_conv", override=True)
    runtime.hook("acme_target.greet", lambda result, name: result + "!", "after")
    return runtime


STEPS = {
    "in the import": "raise KeyboardInterrupt",
    "in the function": BOTH.format("second") + "    raise KeyboardInterrupt",
    "in both": BOTH.format("second") + "    import acme_stopped",
}
INTERRUPTS: Any = (KeyboardInterrupt,)
if sys.version_info >= (3, 11):
    INTERRUPTS += (BaseExceptionGroup,)  # noqa: F821 - Python 3.10 has none
    STEPS["in a group of tasks"] = BOTH.format("second") + (
        "    raise BaseExceptionGroup('tasks', [OSError('cancelled'), KeyboardInterrupt()])"
    )


@pytest.mark.parametrize("timeout", [None, 30])
@pytest.mark.parametrize("name", STEPS)
def test_an_interrupt_in_a_plugin(
    host: Runtime, install: Install, find: Find, name: str, timeout: float | None
) -> None:
    info = install("acme-bb", STEPS[name], files={"acme_stopped.py": "raise KeyboardInterrupt"})
    install("acme-cc", BOTH.format("third"))
    before = state_of(host)
    for _ in range(2):
        with pytest.raises(INTERRUPTS) as caught:
            host.load(timeout=timeout)
        raised = getattr(caught.value, "exceptions", (caught.value,))
        assert isinstance(raised[-1], KeyboardInterrupt)
        assert state_of(host) == before
    assert getattr(sys.modules.get("acme_cc"), "calls", []) == []
    sys.modules.pop("acme_bb", None)
    (info.parent / "acme_bb.py").write_text(BOTH.format("second"))
    host.load(["acme-aa", "acme-bb", "acme-cc"], strict=True)
    assert {plugin.state for plugin in host.plugins if plugin.name.startswith("acme")} == {"loaded"}
    assert state_of(host)[-1] == "hello world! third second first"


def interrupting(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, after: bool, at: int) -> None:
    """Interrupt call number `at` of a function, before or after its work."""
    function = getattr(owner, name)
    calls = []

    def call(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == at and not after:
            raise KeyboardInterrupt
        result = function(*args, **options)
        if len(calls) == at:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(owner, name, call)


POINTS = [
    (Staging, "commit", False),
    (Staging, "commit", True),
    (Hooks, "commit", True),
    (loader.Attempt, "find", True),
    (loader.Attempt, "register", True),
    (loader.Loader, "_ordered", True),
    (loader.Loader, "_select", True),
    (loader.Loader, "_look", True),
]


@pytest.mark.parametrize(("owner", "name", "after"), POINTS)
@pytest.mark.parametrize("at", [1, 2])
def test_between_plugins(
    host: Runtime,
    install: Install,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    after: bool,
    at: int,
) -> None:
    install("acme-bb", BOTH.format("second"))
    before = state_of(host)
    with monkeypatch.context() as patch:
        interrupting(patch, owner, name, after=after, at=at)
        if at == 2 and owner is loader.Loader:  # the loader calls these functions once
            host.load()
            return
        with pytest.raises(KeyboardInterrupt):
            host.load()
    assert state_of(host) == before
    host.load(["acme-aa", "acme-bb"], strict=True)
    assert len(sys.modules["acme_bb"].calls) in (1, 2)
    assert host.backend("kda", "second")


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")
def test_a_signal_at_any_moment(host: Runtime, install: Install, find: Find) -> None:
    """A signal at any of 150 moments of `load` leaves the runtime as it was, and a later `load` works."""
    install("acme-bb", BOTH.format("second"))
    install("acme-cc", BOTH.format("third"))
    names = ["acme-aa", "acme-bb", "acme-cc"]
    host.load(names)
    loaded = state_of(host)[2:]
    interrupted = 0
    for step in range(150):
        with switchrail.testing.isolated() as runtime:
            runtime.register("torch", "u:U", op="short_conv", override=True)
            before = state_of(runtime)
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-5 + step * 1.2e-5)
                runtime.load(names)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            states = {plugin.state for plugin in runtime.plugins if plugin.name.startswith("acme")}
            if "loaded" not in states:
                assert state_of(runtime) == before
            runtime.load(names, strict=True)
            assert {plugin.state for plugin in runtime.plugins if plugin.name in names} == {"loaded"}
            assert len(runtime.hooks.list()) == 3
            assert len(runtime._core.stack("short_conv", "torch")) == 5
    assert interrupted > 5
    assert state_of(host)[2:] == loaded


class Handler:
    def end(self, *_: Any) -> None:
        raise SystemExit(15)


def end(*_: Any) -> None:
    raise SystemExit(15)


@pytest.mark.parametrize("handler", [end, Handler().end], ids=["function", "method"])
@pytest.mark.parametrize("timeout", [None, 30])
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")
def test_a_signal_handlers_exception_is_not_the_plugins_failure(
    host: Runtime, install: Install, find: Find, handler: Any, timeout: float | None
) -> None:
    ring = (
        "    import acme_target, os, signal\n"
        "    os.kill(os.getpid(), signal.SIGALRM)\n"
        "    acme_target.go.wait(60)\n"
    )
    install("acme-bb", BOTH.format("second") + ring)
    before = state_of(host)
    signal.signal(signal.SIGALRM, handler)
    with pytest.raises(SystemExit) as caught:
        host.load(["acme-aa", "acme-bb"], timeout=timeout)
    assert caught.value.code == 15
    assert state_of(host) == before


ALARM = """
import signal

def late(*_):
    raise TimeoutError("the driver is silent")

signal.signal(signal.SIGALRM, late)

def register(registry):
    registry.register("first", "a:B", op="kda")
"""


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs SIGALRM")
def test_a_plugins_handler_that_strikes_another_plugin_does_not_end_the_load(
    runtime: Runtime, install: Install, find: Find
) -> None:
    install("acme-aa", ALARM)
    install("acme-bb", "import signal\ndef register(registry): signal.raise_signal(signal.SIGALRM)")
    install("acme-cc", BOTH.format("third"))
    runtime.load(["acme-aa", "acme-bb", "acme-cc"])
    states = [find(name).state for name in ("acme-aa", "acme-bb", "acme-cc")]
    assert states == ["loaded", "failed", "loaded"]
    assert "TimeoutError: the driver is silent" in (find("acme-bb").reason or "")
    assert "acme_aa.py" in (find("acme-bb").traceback or "")


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs SIGALRM")
def test_an_interrupt_after_the_commit_undoes_it(
    runtime: Runtime, install: Install, find: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    import acme_target

    install("acme-aa", ALARM + "    registry.hook('acme_target.greet', lambda name: (('late',), {}))\n")
    before = runtime._core.snapshot().backends
    commit = Staging.commit

    def commit_and_ring(staging: Staging) -> None:
        commit(staging)
        if "acme-aa" in str(staging):
            signal.raise_signal(signal.SIGALRM)

    monkeypatch.setattr(Staging, "commit", commit_and_ring)
    runtime.load(["acme-aa"])
    assert (find("acme-aa").state, find("acme-aa").reason) == (
        "failed",
        "TimeoutError: the driver is silent",
    )
    assert runtime._core.snapshot().backends == before
    assert runtime.hooks.list() == ()
    assert acme_target.greet() == "hello world"


@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "TimeoutError('stop')"])
@pytest.mark.parametrize("where", ["import", "function"])
def test_ctrl_c_interrupts_through_a_plugins_handler_too(
    host: Runtime, install: Install, raised: str, where: str
) -> None:
    """Ctrl-C interrupts the program even if a plugin's own handler handles the signal."""
    press = "signal.raise_signal(signal.SIGINT)"
    install(
        "acme-bb",
        "import signal\n"
        f"def stop(*_): raise {raised}\n"
        "signal.signal(signal.SIGINT, stop)\n"
        + (f"{press}\n" if where == "import" else "")
        + f"def register(registry): {press}",
    )
    before = state_of(host)
    with pytest.raises((KeyboardInterrupt, TimeoutError)):
        host.load(["acme-aa", "acme-bb"])
    assert state_of(host) == before


def test_a_thread_that_waited_loads_when_the_first_was_interrupted(
    host: Runtime, install: Install, find: Find
) -> None:
    install(
        "acme-bb",
        "import threading\n"
        "entered, go = threading.Event(), threading.Event()\n"
        "calls = []\n"
        "def register(registry):\n"
        "    calls.append(1)\n"
        "    entered.set()\n"
        "    if len(calls) == 1:\n"
        "        assert go.wait(60)\n"
        "        raise KeyboardInterrupt\n"
        "    registry.register('second', 'a:B', op='kda')\n",
    )
    import acme_bb

    results: list[Any] = []
    waiting = threading.Thread(target=lambda: results.append(host.load(["acme-bb"])))

    def follow() -> None:
        assert acme_bb.entered.wait(60)
        waiting.start()
        acme_bb.go.set()

    other = threading.Thread(target=follow)
    other.start()
    with pytest.raises(KeyboardInterrupt):
        host.load(["acme-bb"])
    other.join()
    waiting.join()
    assert [plugin.state for plugin in results[0] if plugin.name == "acme-bb"] == ["loaded"]
    assert acme_bb.calls == [1, 1]
    assert host.backend("kda", "second")


class Told:
    """A lock that reports when a thread is about to wait for it."""

    def __init__(self, lock: Any) -> None:
        self.lock, self.asked = lock, threading.Event()

    def __enter__(self) -> None:
        self.asked.set()
        self.lock.__enter__()

    def __exit__(self, *error: object) -> None:
        self.lock.__exit__(*error)


def test_a_wait_for_another_thread_can_be_interrupted(
    host: Runtime, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        go.wait(60)

    thread = threading.Thread(target=host._loader._alone, args=(hold,))
    thread.start()
    assert entered.wait(60)
    before = state_of(host)
    lock = Told(host._loader._flight._lock)
    monkeypatch.setattr(host._loader._flight, "_lock", lock)

    heard = threading.Event()

    def hear(*_: object) -> None:
        if not heard.is_set():
            heard.set()
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, hear)

    def interrupt() -> None:
        assert lock.asked.wait(60)
        while not heard.wait(0.1):  # repeated, since a signal just before the wait isn't handled in it
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    other = threading.Thread(target=interrupt)
    other.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            host.load()
    finally:
        go.set()
    thread.join(60)
    other.join(60)
    assert not any(each.is_alive() for each in (thread, other))
    assert state_of(host) == before


class Interrupted(str):
    """A string whose conversion raises KeyboardInterrupt, as if the user pressed Ctrl-C at that moment."""

    def __repr__(self) -> str:
        raise KeyboardInterrupt

    __str__ = __fspath__ = __iter__ = __repr__  # type: ignore[assignment]


class NoText:
    """An object, not a string, whose conversion to a string raises KeyboardInterrupt."""

    __repr__ = __str__ = __fspath__ = __iter__ = __len__ = __getitem__ = Interrupted.__repr__  # type: ignore[assignment]


LAYOUT = switchrail.Layout.from_kinds("m", ["full_attention"])
QUESTIONS: dict[str, Callable[[Runtime], object]] = {
    "a text": lambda runtime: runtime._core.begin(NoText()),  # type: ignore[arg-type]
    "a name in a mapping": lambda runtime: runtime._core.begin({Interrupted("kind"): "user"}),
    "a value in a mapping": lambda runtime: runtime._core.begin({"kind": NoText()}),
    "a config": lambda runtime: switchrail.Layout.from_config(NoText()),  # type: ignore[arg-type]
    "an op": lambda runtime: runtime.resolve(NoText(), "decode", device="cpu", dtype="f32"),  # type: ignore[arg-type]
    "a layer": lambda runtime: LAYOUT.layer(NoText()),  # type: ignore[arg-type]
    "lengths": lambda runtime: _core.load_of("kda", NoText()),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_an_interrupt_while_an_error_is_written_is_not_treated_as_that_error(
    runtime: Runtime, name: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        QUESTIONS[name](runtime)


@pytest.fixture(autouse=True)
def plain_interrupts(environment: None) -> None:
    """Set Python's own handler of Ctrl-C; `environment` restores the earlier one."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
