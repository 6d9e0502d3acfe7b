"""Matrix products with a layer's weights, for so few rows that reading the weights takes most of the time."""

from __future__ import annotations

OPERATIONS = {"products": "switchrail_kernels.products.forward:products"}
"""For each operation of `switchrail.platforms` with a kernel here: the path of the function that runs it."""

__all__ = ["OPERATIONS"]
