"""Runs two functions in two threads, again and again, with a thread switch at another line each time.

The first thread stops at a line of the tested code. The second then runs to its end, or until it waits for a
lock. Then the first thread continues. This is repeated for one in `SWITCH_EVERY` of the lines that the first
thread reaches, and with exchanged roles. `make soak` uses every line.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import switchrail

_FOLDER = Path(switchrail.__file__).parent
_LOCKS = type(threading.Lock()), type(threading.RLock())

# Seconds that a thread may be blocked by something other than a watched lock, such as an import lock.
_PATIENCE = 0.05

SWITCH_EVERY = int(os.environ.get("SWITCH_EVERY", "4"))


# Files with code that depends only on its arguments, so that switches there don't matter.
_PURE = {"trampoline.py", "parameters.py", "nearest.py", "fingerprint.py"}


def every_interleaving(
    make: Callable[[], tuple[Callable[[], object], Callable[[], object], Callable[[], object]]],
    places: Sequence[str],
    locks: Callable[[], list[tuple[Any, str]]] = list,
    *,
    alike: bool = False,
) -> int:
    """Run both orders of two functions, with a switch at one in `SWITCH_EVERY` lines of the first.

    Args:
        make: Prepares a run. Returns the two functions, and a function that checks and cleans up after both.
        places: Files and folders of the package. Switches are at their lines and at those of `weakref`.
        locks: Returns the locks to watch besides those that Switchrail's modules hold, as pairs of an object
            and an attribute's name.
        alike: Whether both functions do the same, so that one order is enough.

    Returns:
        About the number of lines that the first thread reached, in both orders together.
    """
    folders = [str(_FOLDER / place) for place in places]
    assert all(map(os.path.exists, folders))
    traced = (weakref.__file__, *folders)
    own = _own_locks()
    gc.freeze()  # otherwise searches for an object's holders would visit all other tests' imports
    try:
        return sum(_runs(make, traced, lambda: own + locks(), (False,) if alike else (False, True)))
    finally:
        gc.unfreeze()


def _runs(
    make: Callable[[], tuple[Callable[[], object], Callable[[], object], Callable[[], object]]],
    traced: tuple[str, ...],
    locks: Callable[[], list[tuple[Any, str]]],
    orders: Sequence[bool],
) -> Iterator[int]:
    for swapped in orders:
        point, reached = swapped % SWITCH_EVERY, True
        while reached:
            one, two, check = make()
            run = _Run(two if swapped else one, one if swapped else two, point, traced)
            with _watched(run, locks()):
                run.both()
            try:
                if run.errors:
                    raise run.errors[0]
            except BaseException as error:
                check_anyway(check)
                raise AssertionError(f"with a switch at {run.place}: {error!r}") from error
            try:
                check()
            except BaseException as error:
                raise AssertionError(f"with a switch at {run.place}: {error!r}") from error
            reached = run.place is not None
            point += SWITCH_EVERY
            yield SWITCH_EVERY


def check_anyway(check: Callable[[], object]) -> None:
    """Call the check of a failed run only because it also cleans up; its failed assertions are ignored."""
    with suppress(AssertionError):
        check()


class _Run:
    def __init__(
        self, first: Callable[[], object], second: Callable[[], object], point: int, traced: tuple[str, ...]
    ) -> None:
        self.errors: list[BaseException] = []
        self.place: str | None = None
        self.second_rests = threading.Event()
        self._point, self._traced_files = point, traced
        self._is_traced: dict[str, bool] = {}
        self._seen: set[tuple[CodeType, int]] = set()
        self._first = threading.Thread(target=self._traced, args=(first,))
        self.second = threading.Thread(target=self._kept, args=(second,))

    def both(self) -> None:
        self._first.start()
        self._first.join(60)
        if self.second.ident is None:
            self.second.start()
        self.second.join(60)
        assert not self._first.is_alive()
        assert not self.second.is_alive()

    def _traced(self, work: Callable[[], object]) -> None:
        # Held here, because CPython 3.11 may still call a trace function that was removed while it ran.
        trace = self._trace
        sys.settrace(trace)
        try:
            self._kept(work)
        finally:
            sys.settrace(None)

    def _kept(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            self.errors.append(error)
        finally:
            if threading.current_thread() is self.second:
                self.second_rests.set()

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        file = code.co_filename
        is_traced = self._is_traced.get(file)
        if is_traced is None:
            is_traced = file.startswith(self._traced_files) and os.path.basename(file) not in _PURE
            self._is_traced[file] = is_traced
        if not is_traced or self.place is not None:
            return None
        point = code, frame.f_lineno
        if event in ("call", "line") and point not in self._seen:
            if len(self._seen) == self._point:
                self.place = f"{file}:{frame.f_lineno}"
                sys.settrace(None)
                self.second.start()
                self.second_rests.wait(_PATIENCE)
                return None
            self._seen.add(point)
        return self._trace


class _Watched:
    """A lock that reports when the second thread waits for it."""

    def __init__(self, lock: Any, run: _Run) -> None:
        self._lock, self._run = lock, run

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._lock.acquire(blocking=False):
            return True
        if threading.current_thread() is self._run.second:
            self._run.second_rests.set()
        return bool(self._lock.acquire(blocking, timeout))

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def _own_locks() -> list[tuple[Any, str]]:
    """The locks of Switchrail's modules, as pairs of module and name."""
    return [
        (module, name)
        for module_name, module in list(sys.modules.items())
        if module_name.partition(".")[0] == "switchrail"
        for name, value in list(vars(module).items())
        if isinstance(value, _LOCKS)
    ]


@contextmanager
def _watched(run: _Run, locks: list[tuple[Any, str]]) -> Iterator[None]:
    before = [(owner, name, getattr(owner, name)) for owner, name in locks]
    wrappers = {id(lock): _Watched(lock, run) for _, _, lock in before}
    for owner, name, lock in before:
        setattr(owner, name, wrappers[id(lock)])
    try:
        yield
    finally:
        for owner, name, lock in before:
            setattr(owner, name, lock)
