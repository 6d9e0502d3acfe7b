"""Experts of a feed-forward layer: which ones a row takes, their products, and the weighted sum."""

from __future__ import annotations

OPERATIONS = {"experts": "switchrail_kernels.experts.forward:experts"}
"""By operation of `switchrail.platforms`: the function that serves it on GPUs."""

__all__ = ["OPERATIONS"]
