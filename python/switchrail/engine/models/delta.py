"""Gated delta and Kimi delta layers: hooks on the modelling modules' functions for the delta rule."""

from __future__ import annotations

from typing import Any, Final

import torch

from switchrail.engine.models.contract import KEYWORD, Connected, in_engines
from switchrail.engine.models.convolution import before_recurrence
from switchrail.ops import GatedDeltaLayer, KdaLayer
from switchrail.pools import DeltaShape


def dispatch_delta(
    op: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Dispatch the delta rule. The state is in the pool, so it is neither passed nor returned.

    Queries, keys and values are [1, T, heads, size]. The gates g and beta are [1, T, heads], except for g in
    Kimi delta layers, which has the keys' shape.
    """
    connected: Connected = kwargs[KEYWORD]
    layer: Any = connected.layers[op]
    if use_qk_l2norm_in_kernel != layer.qk_l2norm:
        raise connected.refuse(op, "qk_l2norm", use_qk_l2norm_in_kernel, layer.qk_l2norm)
    q, k, v, g, beta = (tensor.squeeze(0) for tensor in (query, key, value, g, beta))
    out = torch.empty(v.shape, dtype=q.dtype, device=q.device)
    # some models pass the decay in the activations' dtype, not in float32
    connected.dispatch(op, q, k, v, g.float(), beta, out)
    return out.unsqueeze(0), None


@in_engines
def torch_chunk_gated_delta_rule(*args: Any, **kwargs: Any) -> Any:
    """The gated delta rule, with the state in the pool."""
    return dispatch_delta("gated_delta", *args, **kwargs)


@in_engines
def chunk_kimi_delta_attention(*args: Any, **kwargs: Any) -> Any:
    """Kimi delta attention, with the state in the pool."""
    return dispatch_delta("kda", *args, **kwargs)


GATED_DELTA: Final = before_recurrence(
    "gated_delta",
    shape=lambda mixer: DeltaShape(
        heads=mixer.num_v_heads, value_size=mixer.head_v_dim, key_size=mixer.head_k_dim
    ),
    layer=lambda mixer, states: GatedDeltaLayer(state=states, scale=mixer.head_k_dim**-0.5, qk_l2norm=True),
    hooks={"torch_chunk_gated_delta_rule": torch_chunk_gated_delta_rule},
)
"""Gated delta layers."""

KDA: Final = before_recurrence(
    "kda",
    shape=lambda mixer: DeltaShape(heads=mixer.num_heads, value_size=mixer.head_dim, key_size=mixer.head_dim),
    layer=lambda mixer, states: KdaLayer(state=states, scale=mixer.head_dim**-0.5, qk_l2norm=True),
    hooks={"chunk_kimi_delta_attention": chunk_kimi_delta_attention},
)
"""Kimi delta layers."""
