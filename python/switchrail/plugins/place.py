"""Finds the line of code in which a plugin failed."""

from __future__ import annotations

import re
from pathlib import Path

from switchrail._core import Plugin

_FRAME = re.compile(r'^ *File "(.+)", line (\d+)', re.MULTILINE)
_OURS = str(Path(__file__).parents[1])


def placed_reason(plugin: Plugin) -> str:
    """Why a plugin is not loaded, with the last line of its traceback that is not Switchrail's code."""
    reason = plugin.reason or ""
    frames = _FRAME.findall(plugin.traceback or "")
    places = [f"{file}:{line}" for file, line in frames if not file.startswith((_OURS, "<"))]
    return f"{reason} ({places[-1]})" if places else reason
