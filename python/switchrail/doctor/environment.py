"""Checks the environment variables, and the lock and the policy that they name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from switchrail import _core
from switchrail._core import Plugin
from switchrail.doctor.finding import Finding
from switchrail.errors import SwitchrailError
from switchrail.lock import Lock, lock_differences
from switchrail.nearest import nearest
from switchrail.plugins.environment import seconds_allowed
from switchrail.policy import read_policy
from switchrail.runtime import Runtime
from switchrail.times import read_machines, times_path
from switchrail.variables import ALLOW_LIST, LOCK, PLATFORM, POLICY, PREFIX, TIMEOUT, TIMES, VARIABLES

Read = Callable[[str, Sequence[Plugin]], object]


READERS: Mapping[str, tuple[Read, str]] = {
    ALLOW_LIST: (
        lambda text, plugins: _core.select(list(plugins), _core.parse_allow(text)),
        "name installed plugins, separated by commas, or unset it to allow all",
    ),
    PLATFORM: (
        lambda text, plugins: _core.select(list(plugins), None, text.strip() or None),
        "name a built-in kind or an installed platform, or unset it for automatic choice",
    ),
    LOCK: (lambda path, _: Lock.read(path), "write a new lock with `switchrail lock`, or unset it"),
    TIMEOUT: (lambda *_: seconds_allowed(None), "set it to a number of seconds above 0, or unset it"),
    TIMES: (
        lambda *_: read_machines(times_path()),
        "set it to another file; or remove the file and measure again with `switchrail tune`; or unset it",
    ),
    POLICY: (
        lambda *_: read_policy(),
        "name a TOML file with the tables [backends], [deny] and [config.OP.NAME], or unset it",
    ),
}
"""For each variable: a function that raises an error if the value is invalid, and the advice in this case."""


def check_policy(runtime: Runtime) -> Iterator[Finding]:
    """Reports configurations of the policy file that don't fit the registered backends."""
    for error in runtime.apply_policy():
        yield Finding("environment", POLICY, str(error), "correct the file; until then no plan can be made")


def check_environment(runtime: Runtime) -> Iterator[Finding]:
    """Reports unknown and invalid variables, and differences from the lock."""
    plugins = runtime.discover()
    for variable in sorted(name for name in os.environ if name.startswith(PREFIX)):
        if variable not in READERS:
            valid = [name.removeprefix(PREFIX) for name in VARIABLES]
            close, _ = nearest(variable.removeprefix(PREFIX), valid)
            advice = (
                f"rename it to {PREFIX}{close[0]}" if close else f"unset it; valid: {', '.join(VARIABLES)}"
            )
            yield Finding("environment", variable, "Switchrail reads no such variable", advice)
            continue
        read, advice = READERS[variable]
        try:
            read(os.environ[variable], plugins)
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
            f"make the installation match {path}; or, if the change is intended, run "
            f"`switchrail lock --output {path}`",
        )
