"""How transformers' model definitions reach the engine: a file per function contract, a table of families."""

from __future__ import annotations

from typing import Final

MODEL_TYPES: Final = ("qwen3_next",)
"""The model types that the engine runs; `families.FAMILIES` has their tables, and imports torch."""
