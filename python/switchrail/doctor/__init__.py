"""Finds problems of the installation, each with advice. `switchrail doctor` prints them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from switchrail.doctor.device import check_device, check_platform
from switchrail.doctor.distributions import check_distributions
from switchrail.doctor.environment import check_environment, check_policy
from switchrail.doctor.finding import Finding
from switchrail.doctor.hosts import check_hosts
from switchrail.doctor.plugins import check_plugins
from switchrail.runtime import Runtime
from switchrail.variables import PLATFORM
from switchrail.waiting import PATIENCE, HungError, patience, within


def diagnose() -> list[Finding]:
    """Runs all checks on a temporary runtime, into which it loads all plugins that may be loaded.

    Imports the modules that hooks wait for, and constructs each backend for the current platform once.
    At the end, removes the hooks of these plugins.
    """
    runtime = Runtime()
    runtime.default_timeout = PATIENCE
    try:
        found = list(check_environment(runtime))
        with _without({finding.subject for finding in found}):
            found += check_distributions(runtime)
            found += check_hosts()
            locked = filter(lambda finding: finding.check == "lock", found)
            found += check_plugins(runtime, {finding.subject for finding in locked})
            found += check_policy(runtime)
        with _without({finding.subject for finding in found}):
            seconds = patience(runtime._loader.seconds())
            try:
                found += within(seconds, lambda: list(check_device()), "torch", "looking for the device")
            except HungError as error:  # the next use of the device would hang too
                advice = f"run `nvidia-smi` to check the driver; {PLATFORM}=cpu skips the search"
                found.append(Finding("device", "torch", str(error), advice))
            else:
                found += check_platform(runtime)
    finally:
        runtime.hooks.clear()
    return found


@contextmanager
def _without(variables: set[str]) -> Iterator[None]:
    """Unsets environment variables in the block. Names that are not set variables are ignored."""
    left_out = {name: os.environ.pop(name) for name in variables if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(left_out)


__all__ = ["Finding", "diagnose"]
