"""Gated delta layers: `causal_conv1d_fn`, then `torch_chunk_gated_delta_rule`, of the modelling module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from switchrail.engine.models import convolution
from switchrail.engine.models.contract import KEYWORD, MixerContract
from switchrail.engine.models.delta import dispatch_delta
from switchrail.ops import GatedDeltaLayer, Layer
from switchrail.pools import DeltaShape, Shape


def torch_chunk_gated_delta_rule(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Hook: the delta rule with its state in the pool, or the original for other models."""
    call = kwargs.get(KEYWORD)
    return original(*args, **kwargs) if call is None else dispatch_delta("gated_delta", *args, **kwargs)


def _shapes(mixer: nn.Module) -> dict[str, Shape]:
    read: Any = mixer
    return {
        "short_conv": convolution.conv_shape(read.conv1d, read.activation),
        "gated_delta": DeltaShape(
            heads=read.num_v_heads, value_size=read.head_v_dim, key_size=read.head_k_dim
        ),
    }


def _layers(mixer: nn.Module, memory: Callable[[str], tuple[torch.Tensor, ...]]) -> dict[str, Layer]:
    read: Any = mixer
    (states,) = memory("gated_delta")
    return {
        "short_conv": convolution.conv_layer(read.conv1d, read.activation, *memory("short_conv")),
        "gated_delta": GatedDeltaLayer(state=states, scale=read.head_k_dim**-0.5, qk_l2norm=True),
    }


GATED_DELTA: Final = MixerContract(
    shapes=_shapes,
    layers=_layers,
    hooks={**convolution.HOOKS, "torch_chunk_gated_delta_rule": torch_chunk_gated_delta_rule},
    packed=True,
)
