"""Matrix products with a layer's weights, for so few rows that reading the weights takes most of the time."""

from __future__ import annotations

OPERATIONS = {"products": "switchrail_kernels.products.forward:products"}
"""By operation of `switchrail.platforms`, the function that implements it on GPUs."""

__all__ = ["OPERATIONS"]
