"""Dispatches the calls of a model's layers to the backends of a route plan. Independent of any engine."""

from __future__ import annotations

from switchrail.dispatch.dispatcher import NOTHING, Dispatcher, Prepared
from switchrail.dispatch.part import Part

__all__ = ["NOTHING", "Dispatcher", "Part", "Prepared"]
