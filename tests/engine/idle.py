"""Checks that an engine has freed all pages and slots."""

from __future__ import annotations

from switchrail.engine import Engine


def is_idle(engine: Engine) -> bool:
    """Whether nothing runs, and each page and slot is free exactly once."""
    pools = engine.pools
    return (
        not engine.busy
        and sorted(pools.pages._free) == list(range(1, pools.pages.capacity + 1))
        and sorted(pools.slots._free) == list(range(1, pools.slots.capacity + 1))
    )
