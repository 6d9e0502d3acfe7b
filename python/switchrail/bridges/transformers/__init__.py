"""Serves loaded transformers models: `sr.use(model)`; see docs/bridges.md."""

from __future__ import annotations

from switchrail.packages import engine_packages

with engine_packages("the bridge to transformers"):
    from switchrail.bridges.transformers.bridge import Handle, use
    from switchrail.bridges.transformers.cache import ServedCache

__all__ = ["Handle", "ServedCache", "use"]
