"""Gated delta layers that compute queries, keys, values and all gates in one matrix product.

In the model definition, the weights' rows for one head's queries, keys, values and output gate are adjacent.
So each step of the original forward copies queries, keys and values twice, and the gates once, before the
convolution. Here the weights' rows are reordered once, after loading, into the order in which the convolution
and the recurrence read.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from switchrail.engine.models.operations import Binding, prepared
from switchrail.engine.models.stack import stack
from switchrail.platforms.operations import GatedDeltaInputs, Products
from switchrail.platforms.serving import Forward


@torch.no_grad()
def _prepare(function: Forward, module: Any) -> torch.Tensor:
    """Reorder the weights of the two projections, and combine both in one product.

    The module's own forward still works: `_split` replaces one of its methods.
    """
    groups, ratio = module.num_k_heads, module.num_v_heads // module.num_k_heads
    keys, values = module.head_k_dim, ratio * module.head_v_dim
    _order_rows(module.in_proj_qkvz.weight, groups, [keys, keys, values, values])
    _order_rows(module.in_proj_ba.weight, groups, [ratio, ratio])
    sizes = [module.key_dim, module.key_dim, module.value_dim, module.value_dim]
    heads = [module.head_k_dim, module.head_k_dim, module.head_v_dim, module.head_v_dim]
    module.fix_query_key_value_ordering = partial(_split, sizes, heads)
    return stack(module.in_proj_qkvz.weight, module.in_proj_ba.weight)


def _order_rows(weight: nn.Parameter, groups: int, sizes: list[int]) -> None:
    """Reorder rows from [group, part] order to [part, group] order."""
    parts = torch.split(weight.view(groups, sum(sizes), -1), sizes, dim=1)
    weight.data = torch.cat([part.reshape(-1, weight.shape[1]) for part in parts])


def _split(
    sizes: list[int], heads: list[int], mixed_qkvz: torch.Tensor, mixed_ba: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Replaces the module's method `fix_query_key_value_ordering`.

    Not bound to the module, since that would create a reference cycle.
    """
    parts = torch.split(mixed_qkvz, sizes, dim=-1)
    return (
        *(torch.unflatten(part, -1, (-1, head)) for part, head in zip(parts, heads, strict=True)),
        *mixed_ba.chunk(2, dim=-1),
    )


def _call(
    function: Forward,
    module: Any,
    hidden_states: torch.Tensor,
    cache_params: None = None,
    attention_mask: None = None,
    *,
    multiply: Forward,
    **kwargs: Any,
) -> Any:
    modelling: Any = sys.modules[type(module).__module__]
    x = hidden_states.squeeze(0)
    mixed, z, g, beta = function(x, prepared(module), module.A_log, module.dt_bias, channels=module.conv_dim)
    mixed = modelling.causal_conv1d_fn(
        mixed.unsqueeze(0).transpose(1, 2),
        module.conv1d.weight.squeeze(1),
        module.conv1d.bias,
        activation=module.activation,
        **kwargs,
    ).transpose(1, 2)
    query, key, value = torch.split(mixed, [module.key_dim, module.key_dim, module.value_dim], dim=-1)
    out, _ = modelling.torch_chunk_gated_delta_rule(
        torch.unflatten(query, -1, (-1, module.head_k_dim)),
        torch.unflatten(key, -1, (-1, module.head_k_dim)),
        torch.unflatten(value, -1, (-1, module.head_v_dim)),
        g=g.unsqueeze(0),
        beta=beta.unsqueeze(0),
        initial_state=None,
        output_final_state=False,
        use_qk_l2norm_in_kernel=True,
        **kwargs,
    )
    out = module.norm(out.squeeze(0), torch.unflatten(z, -1, (-1, module.head_v_dim)))
    return multiply(out.flatten(1).unsqueeze(0), module.out_proj.weight)


GATED_DELTA_NET: Final = Binding(
    GatedDeltaInputs,
    _call,
    prepare=_prepare,
    passes=("in_proj_qkvz", "in_proj_ba", "out_proj"),
    also={"multiply": Products},
)
"""Gated delta layers in which one head's weight rows for queries, keys, values and gate are adjacent."""
