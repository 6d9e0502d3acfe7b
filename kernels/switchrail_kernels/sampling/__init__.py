"""Choice of tokens from logits, without sorting the logits."""

from __future__ import annotations

OPERATIONS = {"choose_tokens": "switchrail_kernels.sampling.choose:choose_tokens"}
"""By operation of `switchrail.platforms`, the function that implements it on GPUs."""

__all__ = ["OPERATIONS"]
