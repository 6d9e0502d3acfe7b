"""Causal softmax attention, multi-head or grouped-query, over a paged cache."""

from switchrail.ops.definition import PAGES, OpDefinition

DEFINITION = OpDefinition(
    op="attention",
    claims={"features": (*PAGES, "sinks", "soft_cap", "window")},
    arguments={"H": "heads", "HKV": "kv_heads", "D": "head_size", "page": "page"},
    head_size=("D", "D"),
    heads=("H", "HKV"),
    sizes=({"H": 64, "HKV": 8, "D": 64}, {"H": 32, "HKV": 8, "D": 128}, {"H": 16, "HKV": 2, "D": 256}),
)

__all__ = ["DEFINITION"]
