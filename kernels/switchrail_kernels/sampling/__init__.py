"""Choice of tokens from logits, without sorting the logits."""

from __future__ import annotations

OPERATIONS = {"choose_tokens": "switchrail_kernels.sampling.choose:choose_tokens"}
"""For each operation of `switchrail.platforms` with a kernel here: the path of the function that runs it."""

__all__ = ["OPERATIONS"]
