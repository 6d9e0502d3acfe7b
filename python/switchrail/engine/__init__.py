"""The engine: runs hybrid models with continuous batching, each layer on the backend that its route names.

Names are imported on first use, so the modules of this package that don't need torch can be used without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from switchrail.packages import engine_packages

if TYPE_CHECKING:
    from switchrail.engine.engine import Engine
    from switchrail.engine.options import EngineOptions
    from switchrail.engine.request import Event, FinishReason, Output, Request
    from switchrail.engine.stats import Stats
    from switchrail.params import SamplingParams

_HOMES = {
    "Engine": ".engine",
    "EngineOptions": ".options",
    "Event": ".request",
    "FinishReason": ".request",
    "Output": ".request",
    "Request": ".request",
    "SamplingParams": "..params",
    "Stats": ".stats",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with engine_packages("the engine"):
        return getattr(import_module(_HOMES[name], __name__), name)


__all__ = ["Engine", "EngineOptions", "Event", "FinishReason", "Output", "Request", "SamplingParams", "Stats"]
