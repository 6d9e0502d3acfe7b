"""What the environment says, and whether it means anything."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

from switchrail import _core
from switchrail.doctor.finding import Finding
from switchrail.errors import SwitchrailError
from switchrail.lock import lock_differences
from switchrail.nearest import nearest
from switchrail.platforms import KINDS
from switchrail.plugins import ALLOW_LIST, LOCK, PLATFORM, TIMEOUT
from switchrail.plugins.environment import seconds_allowed
from switchrail.runtime import Runtime

_PREFIX = "SWITCHRAIL_"


def check_environment(runtime: Runtime) -> Iterator[Finding]:
    """Variables that name nothing, and what differs from the lock."""
    plugins = list(runtime.discover())
    readers: Mapping[str, tuple[Callable[[str], object], str]] = {
        ALLOW_LIST: (
            lambda text: _core.select(plugins, _core.parse_allow(text), None, list(KINDS)),
            "name installed plugins, separated by commas, or unset it: then all may be loaded",
        ),
        PLATFORM: (
            lambda text: _core.select(plugins, None, text.strip() or None, list(KINDS)),
            "name a built-in kind or an installed platform, or unset it: then what is there is used",
        ),
        LOCK: (lambda path: _core.Lock.read(path), "write the lock anew with `switchrail lock`, or unset it"),
        TIMEOUT: (lambda _: seconds_allowed(None), "set it to a number of seconds above 0, or unset it"),
    }
    for variable in sorted(name for name in os.environ if name.startswith(_PREFIX)):
        if variable not in readers:
            valid = [name.removeprefix(_PREFIX) for name in readers]
            close, _ = nearest(variable.removeprefix(_PREFIX), valid)
            advice = (
                f"rename it to {_PREFIX}{close[0]}" if close else f"unset it; valid: {', '.join(readers)}"
            )
            yield Finding("environment", variable, "Switchrail reads no such variable", advice)
            continue
        read, advice = readers[variable]
        try:
            read(os.environ[variable])
        except SwitchrailError as error:
            yield Finding("environment", variable, str(error), advice)
        else:
            if variable == LOCK:
                yield from _lock(os.environ[variable])


def _lock(path: str) -> Iterator[Finding]:
    for difference in lock_differences(path):
        yield Finding(
            "lock",
            difference.distribution,
            str(difference),
            f"install what {path} has; or, where the change is meant, write it anew: "
            f"switchrail lock --output {path}",
        )
