"""The engine: runs hybrid models with continuous batching, each layer on the backend that its route names."""

from __future__ import annotations

from switchrail.engine.engine import Engine
from switchrail.engine.options import EngineOptions
from switchrail.engine.params import SamplingParams
from switchrail.engine.request import Event, FinishReason, Output, Request
from switchrail.engine.stats import Stats

__all__ = ["Engine", "EngineOptions", "Event", "FinishReason", "Output", "Request", "SamplingParams", "Stats"]
