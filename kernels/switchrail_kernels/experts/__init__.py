"""Mixture of experts: the choice of each row's experts, their products, and the weighted sum."""

from __future__ import annotations

OPERATIONS = {
    "experts": "switchrail_kernels.experts.forward:experts",
    "routed_experts": "switchrail_kernels.experts.forward:routed_experts",
}
"""For each operation of `switchrail.platforms` with a kernel here: the path of the function that runs it."""

__all__ = ["OPERATIONS"]
