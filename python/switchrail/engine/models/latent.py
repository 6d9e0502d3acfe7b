"""Layers of multi-head latent attention. Their caches hold latents; only backends expand keys and values."""

from __future__ import annotations

from typing import Any, Final

import torch

from switchrail.engine.models.contract import Connected, Memory, MixerContract
from switchrail.ops import Layer, MlaLayer
from switchrail.pools import LatentShape, Shape


def attend(
    connected: Connected, query: torch.Tensor, latents: torch.Tensor, rotary: torch.Tensor, scaling: float
) -> torch.Tensor:
    """Write a step's latents to the cache, and attend to the cache.

    Args:
        connected: The connected layer.
        query: [1, H, T, D + E]; the last E channels are rotated.
        latents: [1, 1, T, R].
        rotary: [1, 1, T, E], the rotated part of the keys.
        scaling: The factor for the products of queries and keys.

    Returns:
        [1, T, H, V].
    """
    layer: MlaLayer = connected.layers["mla"]
    assert layer.w_k is not None
    assert layer.w_v is not None
    if scaling != layer.scale:
        raise connected.refuse("mla", "scale", scaling, layer.scale)
    q = query.squeeze(0).transpose(0, 1)
    q_nope, q_rope = torch.split(q, [layer.w_k.shape[1], rotary.shape[-1]], dim=-1)
    shape = (*q_nope.shape[:2], layer.w_v.shape[1])
    out = torch.empty(shape, dtype=query.dtype, device=query.device)
    connected.dispatch("mla", q_nope, q_rope, out, written=(latents[0, 0], rotary[0, 0]))
    return out.unsqueeze(0)


def _expand_kv(kv_nope: torch.Tensor, k_rot: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return kv_nope, k_rot


def _shapes(mixer: Any) -> dict[str, Shape]:
    return {"mla": LatentShape(latent=mixer.kv_lora_rank, rotary=mixer.qk_rope_head_dim)}


def _layers(mixer: Any, memory: Memory) -> dict[str, Layer]:
    (kv_cache,) = memory("mla")
    weight = mixer.kv_b_proj.weight.detach().unflatten(0, (-1, mixer.qk_nope_head_dim + mixer.v_head_dim))
    w_k, w_v = weight.split([mixer.qk_nope_head_dim, mixer.v_head_dim], dim=1)
    return {"mla": MlaLayer(kv_cache=kv_cache, w_k=w_k, w_v=w_v, scale=float(mixer.scaling))}


LATENT: Final = MixerContract(shapes=_shapes, layers=_layers, methods={"expand_kv": _expand_kv})
