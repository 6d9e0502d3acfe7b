"""Lightning layers. MiniMax's forward calls no function that could be hooked, so it is reimplemented here."""

from __future__ import annotations

from typing import Any, Final

import torch

from switchrail.engine.models.contract import KEYWORD, Connected, Memory, MixerContract, in_engines
from switchrail.ops import Layer, LightningLayer
from switchrail.pools import DeltaShape, Shape


@in_engines
def forward(module: Any, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
    """MiniMax's forward, with the state in the pool."""
    connected: Connected = kwargs[KEYWORD]
    qkv = module.act_fn(module.qkv_proj(hidden_states)).squeeze(0)
    q, k, v = qkv.unflatten(-1, (-1, 3 * module.head_dim)).split(module.head_dim, dim=-1)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    connected.dispatch("lightning", q, k, v, out)
    normalised = module.norm(out.flatten(1).unsqueeze(0))
    return module.out_proj(torch.sigmoid(module.output_gate(hidden_states)) * normalised), None


@in_engines
def lightning_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, decay: torch.Tensor, **kwargs: Any
) -> torch.Tensor:
    """Lightning attention with the state in the pool. Same arguments as `ring.lightning_attention`."""
    connected: Connected = kwargs[KEYWORD]
    q, k, v = (x.squeeze(0) for x in (query, key, value))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    connected.dispatch("lightning", q, k, v, out)
    return out.unsqueeze(0)


def _shapes(heads: int, size: int) -> dict[str, Shape]:
    return {"lightning": DeltaShape(heads=heads, value_size=size, key_size=size)}


def _layers(mixer: Any, memory: Memory) -> dict[str, Layer]:
    (states,) = memory("lightning")
    # Not the module's buffer, which has the weights' dtype: rounded slopes would change the results of late
    # tokens.
    slopes = mixer.get_slope_rate().to(states.device, torch.float32).flatten()
    return {"lightning": LightningLayer(g=-slopes, state=states, scale=1.0)}


def _ring_layers(mixer: Any, memory: Memory) -> dict[str, Layer]:
    (states,) = memory("lightning")
    decays = mixer.decays().to(states.device)
    return {"lightning": LightningLayer(g=decays, state=states, scale=mixer.scaling)}


LIGHTNING: Final = MixerContract(
    shapes=lambda mixer: _shapes(mixer.num_attention_heads, mixer.head_dim),
    layers=_layers,
    hooks={"MiniMaxLightningAttention.forward": forward},
)
"""MiniMax's lightning layers."""

RING_LIGHTNING: Final = MixerContract(
    shapes=lambda mixer: _shapes(mixer.heads[0], mixer.head_dim),
    layers=_ring_layers,
    hooks={"lightning_attention": lightning_attention},
)
"""The lightning layers of `ring`."""
