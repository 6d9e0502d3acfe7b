"""Lightning layers. They call no function of their module, so their forward is reimplemented here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from switchrail.engine.models.contract import KEYWORD, Connected, MixerContract
from switchrail.ops import Layer, LightningLayer
from switchrail.pools import DeltaShape, Shape


def forward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Hook: the forward with its state in the pool, or the original for other models."""
    connected = kwargs.get(KEYWORD)
    return original(*args, **kwargs) if connected is None else _forward(connected, *args, **kwargs)


def _forward(
    connected: Connected, module: Any, hidden_states: torch.Tensor, *args: Any, **kwargs: Any
) -> tuple[torch.Tensor, None]:
    qkv = module.act_fn(module.qkv_proj(hidden_states)).squeeze(0)
    q, k, v = qkv.unflatten(-1, (-1, 3 * module.head_dim)).split(module.head_dim, dim=-1)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    connected.dispatch("lightning", q, k, v, out)
    normalised = module.norm(out.flatten(1).unsqueeze(0))
    return module.out_proj(torch.sigmoid(module.output_gate(hidden_states)) * normalised), None


def _shapes(mixer: nn.Module) -> dict[str, Shape]:
    read: Any = mixer
    heads, size = read.num_attention_heads, read.head_dim
    return {"lightning": DeltaShape(heads=heads, value_size=size, key_size=size)}


def _layers(mixer: nn.Module, memory: Callable[[str], tuple[torch.Tensor, ...]]) -> dict[str, Layer]:
    read: Any = mixer
    (states,) = memory("lightning")
    # not the buffer, which has the weights' dtype: rounded slopes would change late tokens
    slopes = read.get_slope_rate().to(states.device, torch.float32).flatten()
    return {"lightning": LightningLayer(g=-slopes, state=states, scale=1.0)}


LIGHTNING: Final = MixerContract(
    shapes=_shapes, layers=_layers, hooks={"MiniMaxLightningAttention.forward": forward}
)
"""MiniMax's lightning layers."""

__all__ = ["LIGHTNING"]
