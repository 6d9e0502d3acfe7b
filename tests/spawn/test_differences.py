"""A worker whose installation differs from its parent's refuses the parent's state, and says what differs."""

from __future__ import annotations

import multiprocessing
import pickle
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
from switchrail import Runtime, RuntimeState, current_runtime
from switchrail.errors import InstallationError, SwitchrailError
from switchrail.hooks import chain
from switchrail.processes.differences import differences, digest

ONE = """
def near(text): return None

def register(registry):
    registry.register("one", "acme_one:One", op="gated_delta", priority=-1)
    registry.hook("textwrap.dedent", near, "before")
"""


@pytest.fixture
def state(
    runtime: Runtime, install: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> RuntimeState:
    """A parent's state. Tests then change the installation, as if it were that of another process."""
    (tmp_path / "own").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "own")
    write(tmp_path)
    install("acme-one", ONE)
    install("acme-two")
    runtime.load(["acme-one", "acme-two"], strict=True)
    import userland_own

    runtime.register(
        "mine", "userland_own:Mine", op="kda", config=userland_own.Settings, packages=["acme-two>=1"]
    )
    runtime.configure("kda", "mine", scale=3.0)
    runtime.hooks.add("textwrap.indent", userland_own.hook)
    state = pickle.loads(pickle.dumps(RuntimeState.of(runtime)))
    for name in ("acme_one", "acme_two", "userland_own"):
        del sys.modules[name]
    return state


def write(folder: Path, old: str = "", new: str = "") -> None:
    text = (
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class Settings:\n"
        "    scale: float = 1.0\n"
        "def hook(text, *rest): return None\n"
    )
    assert old in text
    (folder / "own" / "userland_own.py").write_text(text.replace(old, new) + f"# {len(old)} {new}\n")


CHANGES: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "version": (
        lambda install, folder: install("acme-one", ONE, version="2.0"),
        ["plugin acme-one:acme-one: version is '2.0', not '1.0'"],
    ),
    "missing": (
        lambda install, folder: shutil.rmtree(install("acme-two") / "acme_two-1.0.dist-info"),
        ["plugin acme-two:acme-two: it is missing", "package acme-two: version is None, not '1.0'"],
    ),
    "added": (
        lambda install, folder: install("acme-three"),
        ["plugin acme-three:acme-three: it is unexpected"],
    ),
    "failing": (
        lambda install, folder: install("acme-one", "raise OSError('no driver')"),
        [
            "plugin acme-one:acme-one: state is 'failed', not 'loaded' (OSError: no driver)",
            "gated_delta backend 'one': it is missing",
            "before hook acme_one.near of 'acme-one' on textwrap.dedent: it is missing",
        ],
    ),
    "capability": (
        lambda install, folder: install("acme-one", ONE.replace("priority=-1", "priority=7")),
        ["gated_delta backend 'one': priority is 7, not -1"],
    ),
    "backend": (
        lambda install, folder: install("acme-one", ONE.replace('"one"', '"eins"')),
        ["gated_delta backend 'one': it is missing"],
    ),
    "hook": (
        lambda install, folder: install(
            "acme-one", ONE.replace('"before"', '"around"').replace("(text)", "(original, text)")
        ),
        [
            "before hook acme_one.near of 'acme-one' on textwrap.dedent: it is missing",
            "around hook acme_one.near of 'acme-one' on textwrap.dedent: it is unexpected",
        ],
    ),
    "configuration": (
        lambda install, folder: write(folder, "scale", "size"),
        [
            "configuration of kda backend 'mine': there is no field 'scale'",
            "kda backend 'mine': it is missing",
        ],
    ),
    "type of the configuration": (
        lambda install, folder: write(folder, "Settings", "Options"),
        ["userland_own:Settings is not found: AttributeError("],
    ),
    "user's hook": (
        lambda install, folder: write(folder, "def hook", "def look"),
        [
            "userland_own:hook is not found",
            "hook userland_own.hook of 'user' on textwrap.indent: it is missing",
        ],
    ),
    "module": (
        lambda install, folder: (folder / "own" / "userland_own.py").unlink(),
        ["userland_own:Settings is not found: ModuleNotFoundError(", "userland_own:hook is not found"],
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_difference_is_named(
    state: RuntimeState, runtime: Runtime, install: Callable[..., Path], tmp_path: Path, change: str
) -> None:
    assert state.restore() is runtime
    runtime.register("else", "userland:Else", op="kda")  # so that there is something to restore
    hooks = set(runtime.hooks.list())
    make, expected = CHANGES[change]
    make(install, tmp_path)
    with pytest.raises(InstallationError) as caught:
        state.restore()
    differences = caught.value.fields["differences"]
    for text in expected:
        assert any(text in line for line in differences), differences
        assert text in str(caught.value)
    assert len(differences) <= 2 * len(expected) + 2, "something equal is named"
    assert current_runtime() is runtime
    assert set(runtime.hooks.list()) == hooks == set(chain.running()), "the refused runtime left hooks"
    assert runtime.hooks.list("textwrap.dedent")


def test_without_a_change_there_is_no_difference(state: RuntimeState, runtime: Runtime) -> None:
    runtime.register("else", "userland:Else", op="kda")
    other = state.restore()
    assert other is not runtime
    assert other.fingerprint() == state.fingerprint


def test_the_order_of_loading(runtime: Runtime, install: Callable[..., Path]) -> None:
    install("acme-one", ONE)
    install("acme-two")
    other = Runtime()
    for name in ("acme-one", "acme-two"):
        runtime.load([name], strict=True)
    for name in ("acme-two", "acme-one"):
        other.load([name], strict=True)
    found, expected = RuntimeState.of(runtime), RuntimeState.of(other)
    other.hooks.clear()
    assert found.fingerprint == expected.fingerprint
    order = "acme-one:acme-one, acme-two:acme-two, not acme-two:acme-two, acme-one:acme-one"
    assert differences(found, expected) == (f"order of plugins: it is {order}",)
    assert digest(found) != digest(expected)
    assert digest(found) == digest(RuntimeState.of(runtime))


def test_the_order_of_hooks(runtime: Runtime, userland: Any) -> None:
    states = []
    for one, two in ((1, 0), (0, 1)):
        runtime.hooks.add("userland.target", userland.double, priority=one, source="one")
        runtime.hooks.add("userland.target", userland.Owner.bound, priority=two, source="two")
        states.append(RuntimeState.of(runtime))
        runtime.hooks.clear()
    assert any(line.startswith("order of hooks on userland.target: ") for line in differences(*states))


def test_a_state_is_of_one_moment(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = runtime._fingerprint
    calls: list[str] = []

    def meanwhile(*plans: Any) -> Any:
        found = plain(*plans)
        if not calls:
            runtime.register("meanwhile", "a:B", op="kda")
        calls.append(found.digest)
        return found

    monkeypatch.setattr(runtime, "_fingerprint", meanwhile)
    state = RuntimeState.of(runtime)
    assert len(calls) == 2
    assert state.fingerprint == calls[1] == plain().digest
    assert "meanwhile" in {backend.registration.name for backend in state.backends}


def test_another_version_of_switchrail(runtime: Runtime) -> None:
    make, (cls, version, values) = RuntimeState.of(runtime).__reduce__()
    with pytest.raises(InstallationError, match=f"switchrail: version is '{version}', not '9.9'") as caught:
        make(cls, "9.9", b"that only 9.9 can read")
    assert isinstance(caught.value, RuntimeError)
    assert cls is RuntimeState
    assert make(cls, version, values) == RuntimeState.of(runtime)


def test_another_installation_in_a_worker(
    state: RuntimeState, install: Callable[..., Path], capfd: Any
) -> None:
    """If a worker has another installation, it fails, and the parent survives and learns the reason.

    The reason is in the error of the call, or in the worker's output.
    """
    import userland

    install("acme-one", ONE, version="2.0")
    expected = "plugin acme-one:acme-one: version is '2.0', not '1.0'"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as pool:
        error = pool.submit(userland.restored, state).exception()
        assert isinstance(error, InstallationError)
        assert error.fields["differences"] == (expected,)
    with ProcessPoolExecutor(1, context, initializer=state.restore) as pool:
        assert isinstance(pool.submit(userland.report).exception(), BrokenProcessPool)
    assert expected in capfd.readouterr().err
    process = context.Process(target=userland.restored, args=(state,))
    process.start()
    process.join()
    assert process.exitcode == 1
    assert expected in capfd.readouterr().err


def test_a_worker_whose_load_fails(runtime: Runtime, install: Callable[..., Path]) -> None:
    import userland

    install(
        "acme-one",
        "import multiprocessing\n"
        "def register(registry):\n"
        "    if multiprocessing.parent_process(): raise SystemExit('no')\n",
    )
    runtime.load(["acme-one"])
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        error = pool.submit(userland.restored, RuntimeState.of(runtime)).exception()
    assert isinstance(error, InstallationError)
    assert isinstance(error, SwitchrailError)
    assert error.fields["differences"] == (
        "plugin acme-one:acme-one: state is 'failed', not 'loaded' (SystemExit: no)",
    )
