"""Decoder layers that add a mixer's result and normalise the sum at once."""

from __future__ import annotations

from typing import Any, Final

import torch

from switchrail.engine.models.operations import Binding
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
    return residual + module.mlp(x)


DECODER_LAYER: Final = Binding(AddRMSNorm, _call, passes=("post_attention_layernorm",))
"""A norm with weights around zero after the mixer."""

__all__ = ["DECODER_LAYER"]
