"""Gated delta layers: `causal_conv1d_fn`, then `torch_chunk_gated_delta_rule`, of the modelling module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from switchrail.engine.models.contract import KEYWORD, MixerContract
from switchrail.errors import CheckpointError
from switchrail.pools import ConvShape, DeltaShape, Shape

_ACTIVATIONS: Final = {"silu": "silu", "swish": "silu", None: None}


def causal_conv1d_fn(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Hook: the convolution with its window in the pool, or the original for models that are no engine's."""
    call = kwargs.get(KEYWORD)
    return original(*args, **kwargs) if call is None else _convolve(*args, **kwargs)


def torch_chunk_gated_delta_rule(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Hook: the delta rule with its state in the pool, or the original for models that are no engine's."""
    call = kwargs.get(KEYWORD)
    return original(*args, **kwargs) if call is None else _delta(*args, **kwargs)


def _convolve(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Of [1, C, T] hidden states; the result is a view of [T, C], which the caller transposes back."""
    dispatcher, layer = kwargs[KEYWORD]
    x = hidden_states.squeeze(0).transpose(0, 1)
    out: torch.Tensor = dispatcher.short_conv(
        layer, x, weight, bias=bias, activation=_ACTIVATIONS[activation]
    )
    return out.transpose(0, 1).unsqueeze(0)


def _delta(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Of [1, T, heads, size] tensors. There is no cache, so no state comes in or is asked for."""
    dispatcher, layer = kwargs[KEYWORD]
    out = dispatcher.gated_delta(
        layer,
        query.squeeze(0),
        key.squeeze(0),
        value.squeeze(0),
        g=g.squeeze(0),
        beta=beta.squeeze(0),
        scale=query.shape[-1] ** -0.5,
        qk_l2norm=use_qk_l2norm_in_kernel,
    )
    return out.unsqueeze(0), None


def _shapes(mixer: nn.Module) -> dict[str, Shape]:
    read: Any = mixer
    if read.activation not in _ACTIVATIONS:
        valid = tuple(name for name in _ACTIVATIONS if name)
        raise CheckpointError(
            f"layer {read.layer_idx} convolves with {read.activation!r}; valid: {', '.join(valid)}",
            found=read.activation,
            valid=valid,
        )
    return {
        "short_conv": ConvShape(channels=read.conv1d.weight.shape[0], width=read.conv1d.weight.shape[-1]),
        "gated_delta": DeltaShape(
            heads=read.num_v_heads, value_size=read.head_v_dim, key_size=read.head_k_dim
        ),
    }


GATED_DELTA: Final = MixerContract(
    shapes=_shapes,
    hooks={
        "causal_conv1d_fn": causal_conv1d_fn,
        "torch_chunk_gated_delta_rule": torch_chunk_gated_delta_rule,
    },
    packed=True,
)
