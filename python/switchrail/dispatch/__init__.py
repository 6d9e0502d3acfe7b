"""Where a layer's call leaves a model and reaches the backends of its route plan. It knows no engine."""

from __future__ import annotations

from switchrail.dispatch.dispatcher import NOTHING, Dispatcher, Prepared
from switchrail.dispatch.part import Part

__all__ = ["NOTHING", "Dispatcher", "Part", "Prepared"]
