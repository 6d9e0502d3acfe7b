"""Experts with a router, and a shared expert with a gate."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from torch.nn.functional import sigmoid

from switchrail.engine.models.operations import Binding, prepared
from switchrail.engine.models.stack import stack
from switchrail.platforms.operations import Experts, Products
from switchrail.platforms.serving import Forward

_ALIGNED: Final = 8
"""The number of logits per row is padded to a multiple of this, since cuBLAS is slower with other sizes."""


class Weights(NamedTuple):
    """The weights of the operation `Experts`, for E experts with hidden size H and inner size I.

    Attributes:
        router: [E, H], possibly followed by rows of zeros.
        gate_up: [E, 2 I, H].
        down: [E, H, I].
    """

    router: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


def _prepare(function: Forward, module: Any) -> Weights | None:
    """Append the shared expert to the routed ones, and its gate to the router.

    Returns None if the shared expert differs in size from the other experts.
    """
    experts, shared = module.experts, module.shared_expert
    count, hidden, inner = experts.down_proj.shape
    if shared.down_proj.weight.shape != (hidden, inner):
        return None
    gate_up = stack(experts.gate_up_proj, shared.gate_proj.weight, shared.up_proj.weight)
    return Weights(
        stack(module.gate.weight, module.shared_expert_gate.weight, multiple=_ALIGNED),
        gate_up.view(count + 1, 2 * inner, hidden),
        stack(experts.down_proj, shared.down_proj.weight).view(count + 1, hidden, inner),
    )


def _call(function: Forward, module: Any, hidden_states: torch.Tensor, *, multiply: Forward) -> Any:
    x = hidden_states.reshape(-1, hidden_states.shape[-1])
    gate, experts = module.gate, module.experts
    stacked: Weights | None = prepared(module)
    weights = stacked or Weights(gate.weight, experts.gate_up_proj, experts.down_proj)
    out = function(
        x,
        multiply(x, weights.router)[:, : len(weights.down)],
        weights.gate_up,
        weights.down,
        top_k=gate.top_k,
        normalize=getattr(gate, "norm_topk_prob", True),
        shared=0 if stacked is None else 1,
    )
    if stacked is None:
        out = out + sigmoid(module.shared_expert_gate(x)) * module.shared_expert(x)
    return out.reshape(hidden_states.shape)


def _suits(module: Any) -> bool:
    return module.shared_expert.config.hidden_act in ("silu", "swish")


_PASSES = (
    "gate",
    "experts",
    "shared_expert",
    "shared_expert.gate_proj",
    "shared_expert.up_proj",
    "shared_expert.down_proj",
    "shared_expert_gate",
)

SPARSE_BLOCK: Final = Binding(
    Experts, _call, _suits, _prepare, padded=True, passes=_PASSES, also={"multiply": Products}
)
"""Experts with a shared expert."""
