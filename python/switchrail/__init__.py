"""Finds attention-kernel plugins, decides which kernel serves which layer, and sends each call there.

Importing this package imports neither torch nor transformers nor any plugin.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from switchrail._core import Decision, Layer, Layout, Registration, Rejection, Route, RoutePlan
from switchrail.current import current_runtime, hook, load, register
from switchrail.errors import SwitchrailError
from switchrail.platforms import Platform
from switchrail.plugins import plugin
from switchrail.processes import RuntimeState, check_ranks
from switchrail.registration import DeviceSupport, Registry
from switchrail.runtime import Runtime

if TYPE_CHECKING:
    from switchrail.engine import Engine, EngineOptions, Output, SamplingParams

    current_platform: Platform
    """The platform of the current runtime, chosen when it is first asked for."""

_LAZY = ("Engine", "EngineOptions", "Output", "SamplingParams")


def __getattr__(name: str) -> Any:
    if name == "current_platform":
        return current_runtime().platform
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("switchrail.engine"), name)


__all__ = [
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
