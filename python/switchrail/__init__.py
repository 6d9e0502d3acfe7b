"""Finds attention-kernel plugins, decides which kernel serves which layer, and dispatches each layer's calls.

Importing this package imports nothing else: each name is imported from its module on first use.
"""

# typing and __future__ are not imported, since that would take longer than the rest of this file.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from switchrail._core import (
        BatchRoutes,
        BoundPlan,
        Decision,
        Layer,
        Layout,
        Registration,
        Rejection,
        Route,
        RoutePlan,
    )
    from switchrail.current import current_runtime, hook, load, register
    from switchrail.engine import Engine, EngineOptions, Output
    from switchrail.errors import SwitchrailError
    from switchrail.params import SamplingParams
    from switchrail.platforms import Platform
    from switchrail.plugins import plugin
    from switchrail.processes import RuntimeState, check_ranks
    from switchrail.registration import DeviceSupport, Registry
    from switchrail.runtime import Runtime

    current_platform: Platform
    """The platform of the current runtime, chosen on first use."""
    __version__: str
    """The installed distribution's version."""

_HOMES = {
    "_core": (
        "BatchRoutes",
        "BoundPlan",
        "Decision",
        "Layer",
        "Layout",
        "Registration",
        "Rejection",
        "Route",
        "RoutePlan",
    ),
    "current": ("current_runtime", "hook", "load", "register"),
    "engine": ("Engine", "EngineOptions", "Output"),
    "errors": ("SwitchrailError",),
    "params": ("SamplingParams",),
    "platforms": ("Platform",),
    "plugins": ("plugin",),
    "processes": ("RuntimeState", "check_ranks"),
    "registration": ("DeviceSupport", "Registry"),
    "runtime": ("Runtime",),
}


def __getattr__(name: str) -> "Any":
    from importlib import import_module

    if name == "__version__":
        from importlib.metadata import version

        return version("switchrail")
    if name == "current_platform":
        return __getattr__("current_runtime")().platform
    for home, names in _HOMES.items():
        if name == home:
            return import_module(f"switchrail.{home}")
        if name in names:
            value = globals()[name] = getattr(import_module(f"switchrail.{home}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "BatchRoutes",
    "BoundPlan",
    "Decision",
    "DeviceSupport",
    "Engine",
    "EngineOptions",
    "Layer",
    "Layout",
    "Output",
    "Platform",
    "Registration",
    "Registry",
    "Rejection",
    "Route",
    "RoutePlan",
    "Runtime",
    "RuntimeState",
    "SamplingParams",
    "SwitchrailError",
    "check_ranks",
    "current_platform",
    "current_runtime",
    "hook",
    "load",
    "plugin",
    "register",
]


def __dir__() -> list[str]:
    return [*globals(), *__all__]
