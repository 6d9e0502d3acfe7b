"""Experts that transformers' definitions call with the router's choice of experts."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn
from torch.nn.functional import silu
from transformers.activations import ACT2FN

from switchrail.engine.models.operations import Binding
from switchrail.platforms.operations import RoutedExperts
from switchrail.platforms.serving import Forward


def _call(
    function: Forward,
    module: Any,
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
) -> Any:
    return function(hidden_states, top_k_index, top_k_weights, module.gate_up_proj, module.down_proj)


def _suits(module: Any) -> bool:
    return module.act_fn is silu or isinstance(module.act_fn, (nn.SiLU, type(ACT2FN["silu"])))


ROUTED_EXPERTS: Final = Binding(RoutedExperts, _call, _suits, padded=True)
"""Gated experts without biases, whose weights are stacked as [E, 2 I, H] and [E, H, I]."""
