"""Softmax layers with gates, whose queries and keys are normalised and rotated at once."""

from __future__ import annotations

from typing import Any, Final

import torch

from switchrail.engine.models.operations import Binding
from switchrail.engine.models.softmax import attention
from switchrail.platforms.operations import QKNormRope
from switchrail.platforms.serving import Forward


def _call(
    function: Forward,
    module: Any,
    hidden_states: torch.Tensor,
    position_embeddings: tuple[torch.Tensor, torch.Tensor],
    attention_mask: torch.Tensor | None,
    past_key_values: None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    q, k, v = (
        product(hidden_states).unflatten(-1, (-1, module.head_dim))
        for product in (module.q_proj, module.k_proj, module.v_proj)
    )
    q, gate = q[:, :, ::2], q[:, :, 1::2]  # of each head the queries, then their gate
    q, k = function(
        q, k, module.q_norm.weight, module.k_norm.weight, *position_embeddings,
        eps=module.q_norm.eps, weight_offset=1.0,
    )  # fmt: skip
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out, _ = attention(module, q, k, v, attention_mask, module.scaling, **kwargs)
    return module.o_proj((out * torch.sigmoid(gate)).flatten(2)), None


def _suits(module: Any) -> bool:
    return bool(module.q_norm.eps == module.k_norm.eps)


GATED_ATTENTION: Final = Binding(QKNormRope, _call, _suits)
"""Queries with gates, and norms with weights around zero; hooks on the norms don't see this."""

__all__ = ["GATED_ATTENTION"]
