"""Short convolutions, alone or before a recurrence: a hook on the modelling module's `causal_conv1d_fn`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import torch
from torch import nn

from switchrail.engine.models.contract import KEYWORD, Connected, Memory, MixerContract, in_engines
from switchrail.errors import CheckpointError
from switchrail.ops import Layer, ShortConvLayer
from switchrail.pools import ConvShape, Shape, StateShape

_ACTIVATIONS: Final[dict[str | None, Literal["silu"] | None]] = {"silu": "silu", "swish": "silu", None: None}


@in_engines
def causal_conv1d_fn(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Convolve hidden states [1, C, T], with the window in the pool.

    The result, [1, C, T], is a transposed view of [T, C]; the caller transposes it back.
    """
    connected: Connected = kwargs[KEYWORD]
    layer: ShortConvLayer = connected.layers["short_conv"]
    if not torch.compiler.is_compiling() and weight.data_ptr() != layer.weight.data_ptr():
        raise connected.refuse("short_conv", "weights at", weight.data_ptr(), layer.weight.data_ptr())
    if _ACTIVATIONS[activation] != layer.activation:
        raise connected.refuse("short_conv", "activation", activation, layer.activation)
    x = hidden_states.squeeze(0).transpose(0, 1)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    connected.dispatch("short_conv", x, out)
    return out.transpose(0, 1).unsqueeze(0)


def _shape(conv: nn.Conv1d, activation: str | None) -> ConvShape:
    """The shape of a convolution's window in the pool.

    Raises:
        CheckpointError: No backend supports the activation; the caller adds the layer's name to the message.
    """
    if activation not in _ACTIVATIONS:
        valid = tuple(name for name in _ACTIVATIONS if name)
        raise CheckpointError(
            f"convolves with {activation!r}; valid: {', '.join(valid)}", found=activation, valid=valid
        )
    return ConvShape(channels=conv.weight.shape[0], width=conv.weight.shape[-1])


def _layer(conv: nn.Conv1d, activation: str | None, state: torch.Tensor) -> ShortConvLayer:
    """The constant arguments of a convolution's calls."""
    return ShortConvLayer(
        weight=conv.weight.detach().squeeze(1),
        bias=conv.bias,
        state=state,
        activation=_ACTIVATIONS[activation],
    )


def _shapes(mixer: Any) -> dict[str, Shape]:
    return {"short_conv": _shape(mixer.conv, None)}


def _layers(mixer: Any, memory: Memory) -> dict[str, Layer]:
    return {"short_conv": _layer(mixer.conv, None, *memory("short_conv"))}


def before_recurrence(
    op: str,
    *,
    shape: Callable[[Any], StateShape],
    layer: Callable[[Any, torch.Tensor], Layer],
    hooks: Mapping[str, Callable[..., Any]],
) -> MixerContract:
    """The contract of a mixer that convolves the inputs of a recurrence.

    Args:
        op: The op of the recurrence.
        shape: Returns the shape of a mixer's recurrent state.
        layer: Returns the constant arguments of the recurrence, given the mixer and its states.
        hooks: The hook of the recurrence, as in `MixerContract`.
    """

    def shapes(mixer: Any) -> dict[str, Shape]:
        return {"short_conv": _shape(mixer.conv1d, mixer.activation), op: shape(mixer)}

    def layers(mixer: Any, memory: Memory) -> dict[str, Layer]:
        return {
            "short_conv": _layer(mixer.conv1d, mixer.activation, *memory("short_conv")),
            op: layer(mixer, *memory(op)),
        }

    return MixerContract(shapes=shapes, layers=layers, hooks={**_HOOKS, **hooks}, packed=True)


_HOOKS: Final = {"causal_conv1d_fn": causal_conv1d_fn}

SHORT_CONV: Final = MixerContract(shapes=_shapes, layers=_layers, hooks=_HOOKS, packed=True)
"""Layers that consist of a gated convolution."""
