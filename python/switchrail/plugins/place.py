"""Finds the line of code in which a plugin or a backend failed."""

from __future__ import annotations

import re
import sys
import traceback
from pathlib import Path

from switchrail._core import Plugin

_FRAME = re.compile(r'^ *File "(.+)", line (\d+)', re.MULTILINE)
_OURS = str(Path(__file__).parents[1])
_OTHERS = {"switchrail", "torch", "transformers", *sys.stdlib_module_names}
"""Packages whose frames are not a backend's own."""


def failing_place(error: BaseException) -> str:
    """The line in which a backend failed, as `FILE:LINE`; empty if the error has no traceback.

    This is the innermost line in the backend's own package (`switchrail` for a built-in backend). Lines of
    packages that the backend calls, such as torch, are skipped.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    packages = [frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in frames]
    own = next((package for package in packages if package not in _OTHERS), "switchrail")
    places = [f"{frame.f_code.co_filename}:{line}" for frame, line in frames]
    named = [place for place, package in zip(places, packages, strict=True) if package == own]
    return (named or places or [""])[-1]


def placed_reason(plugin: Plugin) -> str:
    """Why a plugin is not loaded, with `FILE:LINE` of the last frame outside of Switchrail's code, if any."""
    reason = plugin.reason or ""
    frames = _FRAME.findall(plugin.traceback or "")
    places = [f"{file}:{line}" for file, line in frames if not file.startswith((_OURS, "<"))]
    return f"{reason} ({places[-1]})" if places else reason
