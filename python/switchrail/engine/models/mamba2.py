"""Mamba2 layers: a hook on the modelling module's `mamba2_chunk_scan`."""

from __future__ import annotations

from typing import Any, Final

import torch

from switchrail.engine.models.contract import KEYWORD, Connected, in_engines
from switchrail.engine.models.convolution import before_recurrence
from switchrail.ops import Mamba2Layer
from switchrail.pools import DeltaShape


@in_engines
def mamba2_chunk_scan(
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
    """The scan of tensors [1, T, heads or groups, size] and dt [1, T, heads], with the state in the pool."""
    connected: Connected = kwargs[KEYWORD]
    layer: Mamba2Layer = connected.layers["mamba2"]
    found, bound = (dt_softplus, *map(float, dt_limit)), (layer.dt_softplus, layer.dt_min, layer.dt_max)
    if found != bound:
        raise connected.refuse("mamba2", "time steps", found, bound)
    x, B, C, dt = (tensor.squeeze(0) for tensor in (hidden_states, B, C, dt))
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    connected.dispatch("mamba2", x, B, C, dt, out)
    return out.unsqueeze(0)


def _layer(mixer: Any, states: torch.Tensor) -> Mamba2Layer:
    dt_min, dt_max = map(float, mixer.time_step_limit)
    return Mamba2Layer(
        A=-torch.exp(mixer.A_log.detach().float()),
        D=mixer.D.detach(),
        dt_bias=mixer.dt_bias.detach(),
        state=states,
        dt_softplus=True,
        dt_min=dt_min,
        dt_max=dt_max,
    )


MAMBA2: Final = before_recurrence(
    "mamba2",
    shape=lambda mixer: DeltaShape(
        heads=mixer.num_heads, value_size=mixer.head_dim, key_size=mixer.ssm_state_size
    ),
    layer=_layer,
    hooks={"mamba2_chunk_scan": mamba2_chunk_scan},
)
