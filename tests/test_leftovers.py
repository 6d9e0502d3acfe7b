"""Tests of `tests/leftovers.py`, which finds changes that a test leaves behind."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from switchrail import current_runtime
from switchrail.hooks import Hooks

from tests import leftovers


def hook() -> None:
    Hooks().add(textwrap.dedent, lambda text: None, "before")


def make_default_runtime() -> None:
    current_runtime()


def handle_signal() -> None:
    signal.signal(signal.SIGUSR1, lambda *_: None)


def set_variables() -> None:
    os.environ["SWITCHRAIL_LEFT"] = "1"


def unset_variable() -> None:
    del os.environ["PATH"]


def make_module() -> None:
    sys.modules["made_by_hand"] = ModuleType("made_by_hand")


def drop_module() -> None:
    del sys.modules["textwrap"]


def make_module_anew() -> None:
    sys.modules["switchrail.hooks"] = ModuleType("switchrail.hooks")


def import_from_a_folder() -> None:
    sys.path.insert(0, "/nowhere")


def put_a_finder() -> None:
    class Finder:
        @staticmethod
        def find_spec(*_: object) -> None:
            return None

    sys.meta_path.insert(0, Finder())


def replace_hook_of_threads() -> None:
    threading.excepthook = lambda _: None


def change_dtype() -> None:
    torch.set_default_dtype(torch.float64)


def change_folder() -> None:
    os.chdir("/")


def switch_often() -> None:
    sys.setswitchinterval(1e-5)


def log_elsewhere() -> None:
    logging.getLogger("switchrail").addHandler(logging.NullHandler())


@pytest.mark.parametrize(
    ("leave", "named"),
    [
        (hook, "hook "),
        (make_default_runtime, "default runtime"),
        (handle_signal, "signal handler"),
        (set_variables, "variable b'SWITCHRAIL_LEFT': nothing became b'1'"),
        (unset_variable, "variable b'PATH'"),
        (make_module, "module made_by_hand"),
        (drop_module, "module textwrap"),
        (make_module_anew, "module switchrail.hooks"),
        (import_from_a_folder, "/nowhere"),
        (put_a_finder, "Finder object"),
        (replace_hook_of_threads, "excepthook"),
        (change_dtype, "torch's dtype: torch.float32 became torch.float64"),
        (change_folder, "working directory"),
        (switch_often, "switch interval"),
        (log_elsewhere, "NullHandler"),
    ],
)
def test_a_leftover_is_named_and_restored(leave: Callable[[], None], named: str) -> None:
    before = leftovers.read()
    leave()
    [left] = leftovers.put_back(before)
    assert named in left
    assert leftovers.put_back(before) == []


def test_threads_and_processes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "GRACE", 0.01)
    before = leftovers.read()
    go = threading.Event()
    thread = threading.Thread(target=go.wait, name="left-thread")
    thread.start()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    found = leftovers.put_back(before)
    go.set()
    thread.join()
    process.communicate()
    assert sorted(text.split()[0] for text in found) == ["process", "thread"]
    assert leftovers.put_back(before) == []


def test_new_files_are_seen(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    tree = leftovers.Tree(tmp_path)
    before = tree.files()
    assert tree.files() is before
    file = tmp_path / "folder" / "left.txt"
    file.write_text("")
    assert tree.files().keys() - before.keys() == {str(file)}
    file.unlink()
    assert tree.files() == before


def test_imports_of_the_standard_library_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    before = leftovers.read()
    import colorsys

    assert leftovers.put_back(before) == []
    assert sys.modules["colorsys"] is colorsys


@pytest.mark.skipif("triton.language" not in sys.modules, reason="needs triton")
def test_tritons_language_is_as_it_was_before_the_interpreter() -> None:
    import triton
    import triton.language as tl

    @triton.jit
    def add_up(p_x, p_y, N: tl.constexpr):  # type: ignore[no-untyped-def]
        tl.store(p_y, tl.sum(tl.load(p_x + tl.arange(0, N)), axis=0))

    before = tl.core.load, tl.core.tensor.__add__, tl.math.exp
    x, y = torch.ones(16), torch.zeros(1)
    if os.environ.get("TRITON_INTERPRET") == "1":
        add_up[(1,)](x, y, 16)
        assert y.item() == 16
        assert tl.core.load is not before[0], "Triton restores it itself: remove `put_back_triton`"
    leftovers.put_back_triton()
    assert (tl.core.load, tl.core.tensor.__add__, tl.math.exp) == before
