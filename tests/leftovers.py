"""Finds changes that a test leaves behind, and undoes them for the next test.

Threads, processes and files that are left behind are only reported.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib
import logging
import os
import signal
import site
import sys
import sysconfig
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from switchrail.current import peek_current, swap_current
from switchrail.hooks import chain

ROOT = Path(__file__).parents[1]
INSTALLED = tuple({str(ROOT), sys.prefix, *sysconfig.get_paths().values(), *site.getsitepackages()})
OWN_VARIABLES = (b"PYTEST_CURRENT_TEST", b"TORCHINDUCTOR_CACHE_DIR")
OWN_MODULES = (
    *("__triton_launcher", "_cython_", "cython_runtime", "_remote_module_"),
    *("cuda_utils", "switchrail_replay"),
)
OWN_THREADS = ("tqdm_monitor",)
"""Names of the threads that libraries start and never end."""
GRACE = 60.0
"""Seconds to wait for the end of a test's thread: enough for a busy machine."""

LISTS = [(sys, "path"), (sys, "meta_path"), (sys, "path_hooks"), (gc, "callbacks")]
ATTRIBUTES = [
    *((sys, name) for name in ("argv", "displayhook", "dont_write_bytecode", "excepthook", "unraisablehook")),
    *((builtins, name) for name in ("__import__", "open")),
    (threading, "excepthook"),
    (warnings, "showwarning"),
]
SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "working directory": (os.getcwd, os.chdir),
    "switch interval": (sys.getswitchinterval, sys.setswitchinterval),
    "recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
    "trace function": (sys.gettrace, sys.settrace),
    "profile function": (sys.getprofile, sys.setprofile),
    "garbage collection": (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    "logging.disable": (lambda: logging.root.manager.disable, logging.disable),
    "torch's dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch's device": (torch.get_default_device, torch.set_default_device),
    "torch's threads": (torch.get_num_threads, torch.set_num_threads),
    "torch's gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
    "torch's determinism": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    "torch's product precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
}
SIGNALS = [
    signal.Signals[f"SIG{name}"] for name in ("INT", "TERM", "HUP", "ALRM", "USR1", "USR2", "CHLD", "PIPE")
]
LOGGERS = [logging.getLogger(name) for name in (None, "switchrail", "py.warnings")]


@dataclass(frozen=True)
class Place:
    """One kind of state that a test may leave changed: a mapping from names to values."""

    kind: str
    read: Callable[[], Mapping[Any, Any]]
    restore: Callable[[Mapping[Any, Any], Any], object]
    """Restores the value of one name, given the earlier mapping and the name."""
    is_left: Callable[[Mapping[Any, Any], Any], bool] = lambda before, name: True
    """Whether to report and undo the change of one name, given the earlier mapping and the name."""


def _environment() -> dict[bytes, bytes]:
    """The environment variables as bytes: decoding them would take longer than the rest of the check."""
    return {name: value for name, value in os.environ._data.items() if name not in OWN_VARIABLES}  # type: ignore[attr-defined]


def _restore_variable(before: Mapping[bytes, bytes], name: bytes) -> None:
    if name in before:
        os.environb[name] = before[name]
    else:
        del os.environb[name]


_modules: dict[str, ModuleType] = {}


def _read_modules() -> dict[str, ModuleType]:
    """A copy of `sys.modules`, renewed only if it has changed.

    Comparing lists takes a fifth of the time of comparing dicts, which look up each name.
    """
    global _modules
    now = sys.modules
    if [*_modules] != [*now] or [*_modules.values()] != [*now.values()]:
        _modules = dict(now)
    return _modules


def _restore_module(before: Mapping[str, ModuleType], name: str) -> None:
    if name in before:
        sys.modules[name] = before[name]
    else:
        del sys.modules[name]


def _is_installed(name: str) -> bool:
    """Whether a module belongs to an installed package or to the repository, without its tests."""
    root = sys.modules.get(name.partition(".")[0])
    places = [getattr(root, "__file__", None) or "", *map(str, getattr(root, "__path__", ()))]
    return any(place.startswith(INSTALLED) for place in places) and not any(
        place.startswith(str(ROOT / "tests" / "")) for place in places
    )


def _is_left_module(before: Mapping[str, ModuleType], name: str) -> bool:
    """Whether a module is missing, was created for a test, or is a Switchrail module that was created again.

    Other packages, such as transformers, may replace their own modules.
    """
    module = sys.modules.get(name)
    if module is None or (name in before and name.startswith("switchrail")):
        return True
    spec = getattr(module, "__spec__", None)
    is_frozen = spec is not None and spec.origin in ("frozen", "built-in")
    is_helper = name.startswith(("tests", *OWN_MODULES))
    return not (is_frozen or is_helper or _is_installed(name))


_installed: set[str] = set()


def _stays(each: object) -> bool:
    """Whether an entry of a list stays there, because it is an object from an installed module."""
    if isinstance(each, str):
        return False
    name = getattr(each, "__module__", "")
    if name not in _installed and _is_installed(name):
        _installed.add(name)
    return name in _installed


def _lists() -> dict[Any, list[Any]]:
    return {
        (owner, name): [each for each in getattr(owner, name) if not _stays(each)] for owner, name in LISTS
    }


def _handlers() -> dict[signal.Signals, Any]:
    """Signal handlers, without those of pytest-timeout, which come and go within a test."""
    found = {each: signal.getsignal(each) for each in SIGNALS}
    ours = {each: now for each, now in found.items() if getattr(now, "__module__", "") == "pytest_timeout"}
    return found | dict.fromkeys(ours, signal.SIG_DFL)


def _threads() -> dict[threading.Thread, str]:
    return {each: each.name for each in threading.enumerate() if each.name not in OWN_THREADS}


def _lasts(before: Mapping[threading.Thread, str], thread: threading.Thread) -> bool:
    if thread in before:
        return False
    thread.join(GRACE)
    return thread.is_alive()


def _children() -> dict[str, str]:
    """The child processes that still run or were not waited for, without those of multiprocessing."""
    found: dict[str, str] = {}
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return found
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for process in task.read_text().split():
                found[process] = Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
    return {process: command for process, command in found.items() if "multiprocessing" not in command}


class Tree:
    """The files inside some folders and directly in the repository's root; read again if a folder changes."""

    def __init__(self, *tops: Path) -> None:
        self._tops = tops
        self._folders: dict[str, int] = {}
        self._files: dict[str, str] = {}

    def _walk(self) -> Iterator[str]:
        for top in self._tops:
            for folder, inner, _ in os.walk(top):
                inner[:] = [name for name in inner if name[0] != "." and name != "__pycache__"]
                yield folder
        yield str(ROOT)

    def files(self) -> dict[str, str]:
        """The files by path, each with the value "there"."""
        try:
            is_same = all(os.stat(folder).st_mtime_ns == time for folder, time in self._folders.items())
        except FileNotFoundError:
            is_same = False
        if not is_same or not self._folders:
            self._folders = {folder: os.stat(folder).st_mtime_ns for folder in self._walk()}
            self._files = {
                entry.path: "there"
                for folder in self._folders
                for entry in os.scandir(folder)
                if entry.name[0] != "." and entry.is_file()
            }
        return self._files


def _restore_attribute(before: Mapping[Any, Any], name: tuple[Any, str]) -> None:
    if name in before:
        setattr(*name, before[name])
    else:
        delattr(*name)


def _remove_hook(before: Mapping[Any, Any], hook: Any) -> None:
    if hook not in before:
        chain.change(remove=[hook])


def _restore_list(before: Mapping[Any, Any], name: tuple[Any, str]) -> None:
    items = getattr(*name)
    items[:] = [each for each in items if each in before[name] or _stays(each)]
    for at, each in enumerate(before[name]):
        if each not in items:
            items.insert(at, each)


def _restore_logger(before: Mapping[Any, Any], name: tuple[logging.Logger, str]) -> None:
    setattr(*name, list(before[name]) if isinstance(before[name], tuple) else before[name])


PLACES = [
    Place("hook", lambda: dict(chain.added()), _remove_hook),
    Place("default runtime", lambda: {"": peek_current()}, lambda before, name: swap_current(before[name])),
    Place("thread", _threads, lambda before, thread: None, _lasts),
    Place("process", _children, lambda before, process: None, lambda before, process: process not in before),
    Place(
        "signal handler",
        _handlers,
        lambda before, each: signal.signal(each, before[each]),
    ),
    Place(
        "file", Tree(ROOT / "tests").files, lambda before, file: None, lambda before, file: file not in before
    ),
    Place("variable", _environment, _restore_variable),
    Place("module", _read_modules, _restore_module, _is_left_module),
    Place("list", _lists, _restore_list),
    Place("attribute", lambda: {each: getattr(*each) for each in ATTRIBUTES}, _restore_attribute),
    Place(
        "setting",
        lambda: {name: read() for name, (read, _) in SETTINGS.items()},
        lambda before, name: SETTINGS[name][1](before[name]),
    ),
    Place(
        "logger",
        lambda: {
            (logger, name): tuple(value) if isinstance(value, list) else value
            for logger in LOGGERS
            for name, value in vars(logger).items()
            if name in ("level", "handlers", "propagate", "disabled", "filters")
        },
        _restore_logger,
    ),
]


def read() -> list[Mapping[Any, Any]]:
    """The current state of everything that a test could leave behind."""
    return [place.read() for place in PLACES]


def put_back(before: list[Mapping[Any, Any]]) -> list[str]:
    """Undo the changes since `before` that are to be reported, and describe each.

    Afterwards `before` holds the current state.
    """
    left = []
    for at, (place, was) in enumerate(zip(PLACES, before, strict=True)):
        now = place.read()
        if now is was or now == was:
            continue
        before[at] = now
        for name in was.keys() | now.keys():
            missing = object()
            old, new = was.get(name, missing), now.get(name, missing)
            if old != new and place.is_left(was, name):
                shown = ("nothing" if each is missing else f"{each!s:.300}" for each in (old, new))
                left.append(f"{place.kind} {name}: " + " became ".join(shown))
                place.restore(was, name)
                before[at] = {}  # to be read again
        if not before[at]:
            before[at] = place.read()
    return left


_triton: dict[Any, dict[str, Any]] = {}


def remember_triton() -> None:
    """Record the current state of Triton's language module, for `put_back_triton`."""
    if find_spec("triton") is None:
        return
    language = importlib.import_module("triton.language")
    core = language.core
    places = (
        language,
        core,
        language.math,
        core.tensor,
        core.dtype,
        getattr(core, "tensor_descriptor_base", core),
    )
    _triton.update((place, dict(vars(place))) for place in places)


def put_back_triton() -> None:
    """Undo the interpreter's changes to Triton's language module, with which no kernel can be compiled."""
    for place, was in _triton.items():
        if vars(place) != was:
            for name, value in was.items():
                if vars(place).get(name) is not value:
                    setattr(place, name, value)
            for name in vars(place).keys() - was.keys() if isinstance(place, type) else ():
                delattr(place, name)
