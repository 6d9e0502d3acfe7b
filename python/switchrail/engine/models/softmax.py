"""Softmax layers, through transformers' attention interface. Latent-attention layers use this module too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from transformers import AttentionInterface

from switchrail.engine.models import latent
from switchrail.engine.models.contract import KEYWORD, Connected, Memory, MixerContract
from switchrail.errors import CheckpointError, DispatchError
from switchrail.ops import AttentionLayer, Layer
from switchrail.pools import KVShape, Shape

IMPLEMENTATION: Final = "switchrail"
"""The name under which `attention` is registered. No mask function has that name, so models make no mask."""


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
    """The attention function that softmax layers call.

    Args:
        module: The calling layer.
        query: [1, H, T, D].
        key: [1, HKV, T, D]; with latent attention, latents as in `latent.attend`.
        value: [1, HKV, T, D]; with latent attention, the keys' rotated part.
        attention_mask: None in the engine.
        scaling: The factor for the products of queries and keys.
        written: Whether keys and values are already in the cache.
        **kwargs: `KEYWORD` and other arguments that the model passes on.

    Returns:
        [1, T, H, D], and None in place of the attention weights.

    Raises:
        DispatchError: An argument differs from the one that the layer was connected with, a mask was passed,
            or no engine owns the layer.
    """
    connected: Connected | None = kwargs.get(KEYWORD)
    if connected is None:
        raise DispatchError(
            f"attention implementation {IMPLEMENTATION!r} serves models that an engine has loaded; valid for "
            "others: 'eager', 'sdpa'"
        )
    if attention_mask is not None:
        raise DispatchError(
            f"layer {connected.id} called attention with a mask; valid: causal attention, with or "
            "without a window",
            layer=connected.id,
            op="attention",
            found=("attention_mask",),
        )
    if "mla" in connected.layers:
        return latent.attend(connected, query, key, value, scaling), None
    q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
    layer: AttentionLayer = connected.layers["attention"]
    for what, found, bound in (
        ("scale", scaling, layer.scale),
        ("sliding_window", kwargs.get("sliding_window"), layer.window),
        ("softcap", kwargs.get("softcap"), layer.soft_cap),
        ("s_aux", kwargs.get("s_aux") is not None, layer.sinks is not None),
    ):
        if found != bound:
            raise connected.refuse("attention", what, found, bound)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    connected.dispatch("attention", q, out, written=() if written else (k, v))
    return out.unsqueeze(0), None


def _shapes(mixer: Any) -> dict[str, Shape]:
    if not mixer.is_causal:
        raise CheckpointError(
            "attends to later tokens too (its is_causal is False); valid: causal attention",
            found=False,
        )
    return {"attention": KVShape(heads=mixer.config.num_key_value_heads, size=mixer.head_dim)}


def _layers(window_of: Callable[[Any], int | None], mixer: Any, memory: Memory) -> dict[str, Layer]:
    k_cache, v_cache = memory("attention")
    cap, sinks = getattr(mixer, "attn_logit_softcapping", None), getattr(mixer, "sinks", None)
    return {
        "attention": AttentionLayer(
            k_cache=k_cache,
            v_cache=v_cache,
            scale=float(mixer.scaling),
            window=window_of(mixer),
            soft_cap=None if cap is None else float(cap),
            sinks=None if sinks is None else sinks.detach(),
        )
    }


def _softmax(window: Callable[[Any], int | None]) -> MixerContract:
    return MixerContract(shapes=_shapes, layers=partial(_layers, window), window=window)


AttentionInterface.register(IMPLEMENTATION, attention)

SOFTMAX: Final = _softmax(lambda mixer: getattr(mixer, "sliding_window", None))
"""Softmax attention, with the module's window, soft cap or sinks if it has these."""

SOFTMAX_OF_CONFIG: Final = _softmax(lambda mixer: mixer.config.sliding_window)
"""Softmax attention with a window that only the config has."""
