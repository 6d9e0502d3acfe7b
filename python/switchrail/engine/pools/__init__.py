"""Where sequences keep what attention remembers: pages of keys and values, and slots of recurrent state.

A platform can give classes of its own for all but `Pools`, which puts them together.
"""

from __future__ import annotations

from switchrail.engine.pools.free import FreeList
from switchrail.engine.pools.kv import KVPool, LatentPool, MultiHeadPool
from switchrail.engine.pools.pools import Pools, pages_of
from switchrail.engine.pools.shapes import (
    ConvShape,
    DeltaShape,
    KVShape,
    LatentShape,
    Shape,
    StateShape,
    TokenShape,
)
from switchrail.engine.pools.state import StatePool

__all__ = [
    "ConvShape",
    "DeltaShape",
    "FreeList",
    "KVPool",
    "KVShape",
    "LatentPool",
    "LatentShape",
    "MultiHeadPool",
    "Pools",
    "Shape",
    "StatePool",
    "StateShape",
    "TokenShape",
    "pages_of",
]
