"""Mamba2 layers: `causal_conv1d_fn`, then `mamba2_chunk_scan`, of the modelling module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from switchrail.engine.models import convolution
from switchrail.engine.models.contract import KEYWORD, Connected, MixerContract
from switchrail.ops import Layer, Mamba2Layer
from switchrail.pools import DeltaShape, Shape


def mamba2_chunk_scan(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Hook: the scan with its state in the pool, or the original for other models."""
    call = kwargs.get(KEYWORD)
    return original(*args, **kwargs) if call is None else _scan(*args, **kwargs)


def _scan(
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    *,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    **kwargs: Any,
) -> torch.Tensor:
    """Run the scan on [1, T, heads or groups, size] tensors and dt [1, T, heads]."""
    connected: Connected = kwargs[KEYWORD]
    layer: Mamba2Layer = connected.layers["mamba2"]
    found, bound = (dt_softplus, *map(float, dt_limit)), (layer.dt_softplus, layer.dt_min, layer.dt_max)
    if found != bound:
        raise connected.refuse("mamba2", "time steps", found, bound)
    x, B, C, dt = (tensor.squeeze(0) for tensor in (hidden_states, B, C, dt))
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    connected.dispatch("mamba2", x, B, C, dt, out)
    return out.unsqueeze(0)


def _shapes(mixer: nn.Module) -> dict[str, Shape]:
    read: Any = mixer
    return {
        "short_conv": convolution.conv_shape(read.conv1d, read.activation),
        "mamba2": DeltaShape(heads=read.num_heads, value_size=read.head_dim, key_size=read.ssm_state_size),
    }


def _layers(mixer: nn.Module, memory: Callable[[str], tuple[torch.Tensor, ...]]) -> dict[str, Layer]:
    read: Any = mixer
    (states,) = memory("mamba2")
    dt_min, dt_max = map(float, read.time_step_limit)
    return {
        "short_conv": convolution.conv_layer(read.conv1d, read.activation, *memory("short_conv")),
        "mamba2": Mamba2Layer(
            A=-torch.exp(read.A_log.detach().float()),
            D=read.D.detach(),
            dt_bias=read.dt_bias.detach(),
            state=states,
            dt_softplus=True,
            dt_min=dt_min,
            dt_max=dt_max,
        ),
    }


MAMBA2: Final = MixerContract(
    shapes=_shapes,
    layers=_layers,
    hooks={**convolution.HOOKS, "mamba2_chunk_scan": mamba2_chunk_scan},
    packed=True,
)
