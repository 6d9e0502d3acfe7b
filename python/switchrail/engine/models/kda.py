"""Kimi delta attention: `causal_conv1d_fn`, then `chunk_kimi_delta_attention`, of the modelling module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from switchrail.engine.models import convolution
from switchrail.engine.models.contract import KEYWORD, MixerContract
from switchrail.engine.models.delta import dispatch_delta
from switchrail.ops import KdaLayer, Layer
from switchrail.pools import DeltaShape, Shape


def chunk_kimi_delta_attention(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Hook: the delta rule with its state in the pool, or the original for other models."""
    call = kwargs.get(KEYWORD)
    return original(*args, **kwargs) if call is None else dispatch_delta("kda", *args, **kwargs)


def _shapes(mixer: nn.Module) -> dict[str, Shape]:
    read: Any = mixer
    return {
        "short_conv": convolution.conv_shape(read.conv1d, read.activation),
        "kda": DeltaShape(heads=read.num_heads, value_size=read.head_dim, key_size=read.head_dim),
    }


def _layers(mixer: nn.Module, memory: Callable[[str], tuple[torch.Tensor, ...]]) -> dict[str, Layer]:
    read: Any = mixer
    (states,) = memory("kda")
    return {
        "short_conv": convolution.conv_layer(read.conv1d, read.activation, *memory("short_conv")),
        "kda": KdaLayer(state=states, scale=read.head_dim**-0.5, qk_l2norm=True),
    }


KDA: Final = MixerContract(
    shapes=_shapes,
    layers=_layers,
    hooks={**convolution.HOOKS, "chunk_kimi_delta_attention": chunk_kimi_delta_attention},
    packed=True,
)
