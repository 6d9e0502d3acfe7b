"""Finds attention-kernel plugins, decides which kernel serves which layer of a hybrid model, sends each call there.

Importing this package imports neither torch nor transformers nor any plugin.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from switchrail._core import Decision, Layer, Layout, Registration, Rejection, Route, RoutePlan
from switchrail.current import current_runtime
from switchrail.errors import SwitchrailError
from switchrail.platform import Platform
from switchrail.registration import DeviceSupport, Registry
from switchrail.runtime import Runtime

if TYPE_CHECKING:
    from switchrail.engine import Engine, EngineOptions, Output, SamplingParams

_LAZY = ("Engine", "EngineOptions", "Output", "SamplingParams")


def register(name: str, target: type[Any] | str | None = None, **arguments: Any) -> Any:
    """Registers a backend with the current runtime; see `Registry.register`."""
    return current_runtime().register(name, target, **arguments)


def __getattr__(name: str) -> Any:
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
    "SamplingParams",
    "SwitchrailError",
    "current_runtime",
    "register",
]
