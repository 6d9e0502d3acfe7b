"""Sampling filters for tests, alone and combined."""

from __future__ import annotations

FILTERS: list[dict[str, float]] = [
    {},
    {"top_p": 0.9},
    {"top_p": 0.2},
    {"top_p": 1e-9},
    {"top_k": 1},
    {"top_k": 7},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"top_k": 30, "top_p": 0.7},
    {"top_k": 5, "top_p": 0.95, "min_p": 0.05},
    {"top_p": 0.8, "min_p": 0.02},
]
