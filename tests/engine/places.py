"""Finds, from bytecode, all places in some files where Python can raise a signal handler's exception.

The interpreter checks for signals after calls, at function entries and at backward jumps. A normal run
records which of these places it passes. Then an action can be run at each of these places in turn.
"""

from __future__ import annotations

import dis
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

Place = tuple[CodeType, int, int]
"""A place: code, offset, and the number of earlier passes."""

OFTEN = 1  # maximum recorded passes per place


@cache
def offsets(code: CodeType) -> frozenset[int]:
    """The instructions before which a signal's exception can be raised."""
    found = set()
    after = True  # for the entry, which has no separate instruction before Python 3.11
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        jump = instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs
        if after or (jump and instruction.argval <= instruction.offset):
            found.add(instruction.offset)
        called = name.startswith("CALL") and not name.startswith("CALL_INTRINSIC")
        after = called or name in ("RESUME", "YIELD_VALUE")
    return frozenset(found)


class Places:
    """A context manager that calls `visit` at each place that functions of some files pass."""

    def __init__(self, files: Iterable[Path], visit: Callable[[Place], None]) -> None:
        self._files = {str(file) for file in files}
        self._visit = visit
        self._passed: Counter[tuple[CodeType, int]] = Counter()

    def __enter__(self) -> None:
        sys._getframe().f_trace_opcodes = True  # needed for 3.12 to trace instructions at all
        sys.settrace(self._enter)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        if frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._instruction

    def _instruction(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        if event == "opcode" and frame.f_lasti in offsets(frame.f_code):
            place = frame.f_code, frame.f_lasti
            count = self._passed[place]
            self._passed[place] += 1
            self._visit((*place, count))
        return self._instruction


def recorded(files: Iterable[Path], run: Callable[[], None]) -> list[Place]:
    """The places that a run passes, each at most `OFTEN` times.

    CPython 3.13 traces the instructions of a function from its second call on, so record twice.
    """
    found: list[Place] = []

    def visit(place: Place) -> None:
        if place[2] < OFTEN:
            found.append(place)

    with Places(files, visit):
        run()
    return found


class Visiting:
    """Within this context, runs the action once: when the instruction has run as often as the place says.

    Traces only the place's function, which takes half as long as tracing all functions of the files.
    """

    def __init__(self, place: Place, action: Callable[[], None]) -> None:
        self._code, self._offset, self._left = place
        self._action = action

    def __enter__(self) -> None:
        sys._getframe().f_trace_opcodes = True  # as for `Places`
        sys.settrace(self._enter)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        if frame.f_code is not self._code:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._instruction

    def _instruction(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        if event == "opcode" and frame.f_lasti == self._offset:
            if self._left == 0:
                sys.settrace(None)
                self._action()
            self._left -= 1
        return self._instruction


def name(place: Place) -> str:
    """A readable description of the place."""
    code, offset, count = place
    line = next((line for start, end, line in code.co_lines() if start <= offset < end), 0)
    return f"{Path(code.co_filename).name}:{line} {code.co_name}+{offset}, time {count + 1}"
