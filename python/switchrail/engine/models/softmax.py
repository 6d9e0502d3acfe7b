"""Softmax layers: transformers' attention interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn
from transformers import AttentionInterface

from switchrail.engine.models.contract import KEYWORD, Connected, MixerContract
from switchrail.errors import DispatchError
from switchrail.ops import AttentionLayer, Layer
from switchrail.pools import KVShape, Shape

IMPLEMENTATION: Final = "switchrail"
"""The name under which the function is registered. No mask function has it, so models make no mask."""

_UNSUPPORTED: Final = ("sliding_window", "softcap", "s_aux")


def attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    *,
    written: bool = False,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The function that softmax layers call.

    Args:
        module: The calling layer.
        query: [1, H, T, D].
        key: [1, HKV, T, D].
        value: [1, HKV, T, D].
        attention_mask: None, as the engine gives none.
        scaling: The factor of the products of query and key.
        written: Whether keys and values are in the cache already.
        **kwargs: `KEYWORD` and other arguments that the model passes on.

    Returns:
        [1, T, H, D], and None in place of the weights.

    Raises:
        DispatchError: The layer asks for attention other than plain causal one, or is not an engine's.
    """
    connected: Connected | None = kwargs.get(KEYWORD)
    if connected is None:
        raise DispatchError(
            f"attention implementation {IMPLEMENTATION!r} serves models that an engine has loaded; valid for "
            "others: 'eager', 'sdpa'"
        )
    asked = [name for name in _UNSUPPORTED if kwargs.get(name) is not None]
    if asked or attention_mask is not None:
        raise DispatchError(
            f"layer {connected.id} asks for attention with {', '.join(asked) or 'a mask'}; valid: plain "
            "causal",
            layer=connected.id,
            op="attention",
            found=tuple(asked) or ("attention_mask",),
        )
    q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
    layer: AttentionLayer = connected.layers["attention"]
    if scaling != layer.scale:
        raise connected.refuse("attention", "scale", scaling, layer.scale)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    connected.dispatch("attention", q, out, written=() if written else (k, v))
    return out.unsqueeze(0), None


def _shapes(mixer: nn.Module) -> dict[str, Shape]:
    config: Any = mixer.config
    return {"attention": KVShape(heads=config.num_key_value_heads, size=int(mixer.head_dim))}  # type: ignore[arg-type]


def _layers(mixer: nn.Module, memory: Callable[[str], tuple[torch.Tensor, ...]]) -> dict[str, Layer]:
    k_cache, v_cache = memory("attention")
    return {"attention": AttentionLayer(k_cache=k_cache, v_cache=v_cache, scale=mixer.scaling)}  # type: ignore[arg-type]


AttentionInterface.register(IMPLEMENTATION, attention)

SOFTMAX: Final = MixerContract(shapes=_shapes, layers=_layers)
