"""Products with the weights of a layer, for so few rows that reading the weights takes all of the time."""

from __future__ import annotations

OPERATIONS = {"products": "switchrail_kernels.products.forward:products"}
"""By operation of `switchrail.platforms`: the function that serves it on GPUs."""

__all__ = ["OPERATIONS"]
