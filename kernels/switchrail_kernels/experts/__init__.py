"""Mixture of experts: the choice of each row's experts, their products, and the weighted sum."""

from __future__ import annotations

OPERATIONS = {
    "experts": "switchrail_kernels.experts.forward:experts",
    "routed_experts": "switchrail_kernels.experts.forward:routed_experts",
}
"""By operation of `switchrail.platforms`: the function that implements it on GPUs."""

__all__ = ["OPERATIONS"]
