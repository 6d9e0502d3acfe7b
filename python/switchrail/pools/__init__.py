"""Memory of the sequences: pages of keys and values, and slots of recurrent states and convolution windows.

The pools depend on neither platform nor engine. A platform can replace these classes by its own.
"""

from __future__ import annotations

from switchrail.pools.free import FreeList
from switchrail.pools.kv import KVPool, LatentPool, MultiHeadPool
from switchrail.pools.shapes import (
    ConvShape,
    DeltaShape,
    KVKind,
    KVShape,
    LatentShape,
    Shape,
    StateShape,
    TokenShape,
    pages_of,
)
from switchrail.pools.state import StatePool

__all__ = [
    "ConvShape",
    "DeltaShape",
    "FreeList",
    "KVKind",
    "KVPool",
    "KVShape",
    "LatentPool",
    "LatentShape",
    "MultiHeadPool",
    "Shape",
    "StatePool",
    "StateShape",
    "TokenShape",
    "pages_of",
]
