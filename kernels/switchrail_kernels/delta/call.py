"""Kernel arguments of the delta rule, derived from a call."""

from __future__ import annotations

import torch
from switchrail.ops.delta_call import DeltaCall, DeltaLayer
from switchrail.ops.gates import GateKind

_KINDS: dict[GateKind | None, int] = {None: 0, "softplus": 1, "sigmoid": 2}


def gate_tensors(call: DeltaCall) -> tuple[torch.Tensor, ...]:
    """g, beta, A_log and dt_bias. g takes the place of an absent A_log or dt_bias, and is not read there."""
    layer, g = call.layer, call.g
    rate = g if layer.A_log is None else layer.A_log
    return g, call.beta, rate, g if layer.dt_bias is None else layer.dt_bias


def gate_numbers(layer: DeltaLayer) -> tuple[float, ...]:
    """The lower bound of the log decay, and the scale of beta; 0 if absent."""
    return layer.lower_bound or 0.0, layer.beta_scale or 0.0


def gate_constants(layer: DeltaLayer) -> tuple[int | bool, ...]:
    """The kind of gate, whether there is a bias, and whether betas still need their sigmoid."""
    return _KINDS[layer.gate], layer.dt_bias is not None, layer.beta_scale is not None


def outer_strides(*tensors: torch.Tensor) -> tuple[int, ...]:
    """The strides of the first two axes of each tensor."""
    return tuple(stride for tensor in tensors for stride in tensor.stride()[:2])
