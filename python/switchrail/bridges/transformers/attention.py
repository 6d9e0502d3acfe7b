"""The attention function of served models, under its own name."""

from __future__ import annotations

from typing import Any, Final

import torch
from transformers import AttentionInterface

from switchrail.engine.models import softmax
from switchrail.engine.models.contract import KEYWORD
from switchrail.errors import BridgeError

IMPLEMENTATION: Final = "switchrail_bridge"
"""The name of `attention`. It has no mask function, so models make no mask; padding is removed before."""


def attention(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
    """The attention function that softmax layers call; see `softmax.attention`.

    Raises:
        BridgeError: The layer is not called by a served model.
    """
    if KEYWORD not in kwargs:
        raise BridgeError(
            f"attention implementation {IMPLEMENTATION!r} serves models given to "
            "switchrail.bridges.transformers.use, and this layer was called by no such model: perhaps a copy "
            "of one, or a model with the same config object; valid for others: 'eager', 'sdpa'"
        )
    return softmax.attention(*args, **kwargs)


AttentionInterface.register(IMPLEMENTATION, attention)

__all__ = ["IMPLEMENTATION"]
