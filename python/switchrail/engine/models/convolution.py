"""The convolution before a recurrence: `causal_conv1d_fn` of the modelling module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import torch
from torch import nn

from switchrail.engine.models.contract import KEYWORD, Connected, MixerContract
from switchrail.errors import CheckpointError
from switchrail.ops import Layer, ShortConvLayer
from switchrail.pools import ConvShape, Shape

_ACTIVATIONS: Final[dict[str | None, Literal["silu"] | None]] = {"silu": "silu", "swish": "silu", None: None}


def causal_conv1d_fn(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Hook: the convolution with its window in the pool, or the original for other models."""
    call = kwargs.get(KEYWORD)
    return original(*args, **kwargs) if call is None else _convolve(*args, **kwargs)


def _convolve(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Convolve [1, C, T] hidden states. The result is a view of [T, C], which the caller transposes back."""
    connected: Connected = kwargs[KEYWORD]
    layer: ShortConvLayer = connected.layers["short_conv"]
    is_other = not torch.compiler.is_compiling() and weight.data_ptr() != layer.weight.data_ptr()
    if is_other or _ACTIVATIONS[activation] != layer.activation:
        raise connected.refuse("short_conv", "weights or activation", activation, layer.activation)
    x = hidden_states.squeeze(0).transpose(0, 1)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    connected.dispatch("short_conv", x, out)
    return out.transpose(0, 1).unsqueeze(0)


def conv_shape(conv: nn.Conv1d, activation: str | None) -> ConvShape:
    """The shape of a convolution's window.

    Raises:
        CheckpointError: No backend has its activation; the layer's name is put before the message.
    """
    if activation not in _ACTIVATIONS:
        valid = tuple(name for name in _ACTIVATIONS if name)
        raise CheckpointError(
            f"convolves with {activation!r}; valid: {', '.join(valid)}", found=activation, valid=valid
        )
    return ConvShape(channels=conv.weight.shape[0], width=conv.weight.shape[-1])


def conv_layer(conv: nn.Conv1d, activation: str | None, state: torch.Tensor) -> ShortConvLayer:
    """The constant arguments of a convolution's calls."""
    return ShortConvLayer(
        weight=conv.weight.detach().squeeze(1),
        bias=conv.bias,
        state=state,
        activation=_ACTIVATIONS[activation],
    )


def _shapes(mixer: nn.Module) -> dict[str, Shape]:
    conv: Any = mixer.conv
    return {"short_conv": conv_shape(conv, None)}


def _layers(mixer: nn.Module, memory: Callable[[str], tuple[torch.Tensor, ...]]) -> dict[str, Layer]:
    conv: Any = mixer.conv
    return {"short_conv": conv_layer(conv, None, *memory("short_conv"))}


HOOKS: Final = {"causal_conv1d_fn": causal_conv1d_fn}

SHORT_CONV: Final = MixerContract(shapes=_shapes, layers=_layers, hooks=HOOKS, packed=True)
"""Layers that consist of a gated convolution."""

__all__ = ["HOOKS", "SHORT_CONV", "conv_layer", "conv_shape"]
