"""The engine: runs hybrid models with continuous batching, each layer on the backend that its route names.

transformers is imported with `Engine`; what an engine would do can be asked without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from switchrail.engine.options import EngineOptions
from switchrail.engine.params import SamplingParams
from switchrail.engine.request import Event, FinishReason, Output, Request
from switchrail.engine.stats import Stats

if TYPE_CHECKING:
    from switchrail.engine.engine import Engine


def __getattr__(name: str) -> Any:
    if name != "Engine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from switchrail.engine.engine import Engine

    return Engine


__all__ = ["Engine", "EngineOptions", "Event", "FinishReason", "Output", "Request", "SamplingParams", "Stats"]
