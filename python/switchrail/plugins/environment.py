"""Reads the settings for loading plugins from arguments and environment variables."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Sequence
from typing import Any

from switchrail import _core
from switchrail._core import Plugin
from switchrail.arguments import refused, texts
from switchrail.errors import ConfigError
from switchrail.variables import ALLOW_LIST, PLATFORM, TIMEOUT

PLATFORMS = "switchrail.platforms"
"""The entry-point group of platform plugins."""


def allowed(allow: Sequence[str] | None) -> Sequence[str] | None:
    """Names of the plugins that may be loaded: `allow`, or else `SWITCHRAIL_PLUGINS`; None means all.

    Raises:
        ArgumentError: The argument is a single string, or contains something other than strings.
    """
    if allow is None:
        text = os.environ.get(ALLOW_LIST)
        return None if text is None else _core.parse_allow(text)
    return texts("plugins", allow)


def platform_in_use(asked: str | None, plugins: Sequence[Plugin]) -> str | None:
    """The name of the platform in use, from `asked` or else `SWITCHRAIL_PLATFORM`; None if neither names one.

    Args:
        asked: The platform or device that the program named, or None.
        plugins: The installed plugins.
    """
    if asked is None:
        return os.environ.get(PLATFORM, "").strip() or None
    return _core.platform_of(asked, list(plugins))


def seconds_allowed(timeout: float | None, default: float | None = None) -> float | None:
    """The time limit for one plugin in seconds; None means no limit.

    Args:
        timeout: The limit that the program gave; None means `SWITCHRAIL_LOAD_TIMEOUT`.
        default: The limit if the variable is unset.

    Raises:
        ArgumentError: `timeout` is not a number.
        ConfigError: The limit is not above 0, or the variable is not a number.
    """
    name: str = "timeout"
    found: Any = timeout
    if timeout is None:
        name, found = TIMEOUT, os.environ.get(TIMEOUT)
        if found is None:
            return default
        if found.strip() == "none":
            return None
    elif isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise refused(name, timeout, "a number of seconds, or None")
    try:
        seconds = float(found)
    except (ValueError, OverflowError):
        seconds = math.nan
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise ConfigError(
            f"{name} is {found!r}; valid: a number of seconds above 0, at most {threading.TIMEOUT_MAX:g}"
            f"{', or none' if timeout is None else ''}",
            found=found,
        )
    return seconds
