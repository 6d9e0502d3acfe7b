"""Stand-in: a place in the cache."""

from dataclasses import dataclass
from typing import Any


@dataclass
class KVWriteLoc:
    loc: Any
    swa_loc: Any = None
