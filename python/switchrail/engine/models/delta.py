"""Dispatches the delta rule for gated delta and Kimi delta layers."""

from __future__ import annotations

from typing import Any

import torch

from switchrail.engine.models.contract import KEYWORD, Connected


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
    """Dispatch the delta rule on tensors [1, T, heads, size].

    The state is in the pool, so it is neither passed nor returned.
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
