"""Decoder layers that fuse each residual sum with the next norm, within a layer and between layers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import torch

from switchrail.engine.models.operations import Binding, keep_normal, serves
from switchrail.platforms.operations import AddRMSNorm
from switchrail.platforms.serving import Forward


def _call(
    function: Forward,
    module: Any,
    hidden_states: torch.Tensor,
    position_embeddings: tuple[torch.Tensor, torch.Tensor],
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    past_key_values: None = None,
    **kwargs: Any,
) -> Any:
    x = module.input_layernorm(hidden_states)
    if module.block_type == "linear_attention":
        x = module.linear_attn(
            hidden_states=x, cache_params=past_key_values, attention_mask=attention_mask, **kwargs
        )
    else:
        x, _ = module.self_attn(
            hidden_states=x,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            position_embeddings=position_embeddings,
            **kwargs,
        )
    norm = module.post_attention_layernorm
    residual, x = function(x, hidden_states, norm.weight, eps=norm.eps, weight_offset=1.0)
    x = module.mlp(x)
    following: tuple[Any, Any] | None = module.__dict__.get(_FOLLOWING)
    if following is None or torch.compiler.is_compiling() or not serves(module, *following):
        return residual + x
    norm, _ = following
    total, x = function(x, residual, norm.weight, eps=norm.eps, weight_offset=1.0)
    keep_normal(norm, total, x)
    return total


def _link(function: Forward, model: Any) -> None:
    """Store in each layer the norm that comes after it, and the next layer."""
    layers = list(model.layers)
    for layer, after in pairwise(layers):
        layer.__dict__[_FOLLOWING] = after.input_layernorm, after
    layers[-1].__dict__[_FOLLOWING] = model.norm, model.norm


_FOLLOWING: Final = "_switchrail_following"

DECODER_LAYER: Final = Binding(AddRMSNorm, _call, passes=("post_attention_layernorm",))
"""Fuses the residual sum after the mixer with the next norm, whose weights are centred at zero."""

DECODER_LAYERS: Final = Binding(AddRMSNorm, None, prepare=_link)
"""Consecutive layers of this kind, with a norm of the same form after the last layer.

A layer's last sum is fused with the next layer's norm, unless a module between them is hooked: a hook could
change the sum.
"""
