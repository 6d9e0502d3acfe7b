"""Gated delta layers: `causal_conv1d_fn`, then `torch_chunk_gated_delta_rule`, of the modelling module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import torch
from torch import nn

from switchrail.engine.models.contract import KEYWORD, Connected, MixerContract
from switchrail.errors import CheckpointError
from switchrail.ops import GatedDeltaLayer, Layer, ShortConvLayer
from switchrail.pools import ConvShape, DeltaShape, Shape

_ACTIVATIONS: Final[dict[str | None, Literal["silu"] | None]] = {"silu": "silu", "swish": "silu", None: None}


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
    connected: Connected = kwargs[KEYWORD]
    layer: ShortConvLayer = connected.layers["short_conv"]
    is_other = not torch.compiler.is_compiling() and weight.data_ptr() != layer.weight.data_ptr()
    if is_other or _ACTIVATIONS[activation] != layer.activation:
        raise connected.refuse("short_conv", "weights or activation", activation, layer.activation)
    x = hidden_states.squeeze(0).transpose(0, 1)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    connected.dispatch("short_conv", x, out)
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
    connected: Connected = kwargs[KEYWORD]
    layer: GatedDeltaLayer = connected.layers["gated_delta"]
    if use_qk_l2norm_in_kernel != layer.qk_l2norm:
        raise connected.refuse("gated_delta", "qk_l2norm", use_qk_l2norm_in_kernel, layer.qk_l2norm)
    q, k, v, g, beta = (tensor.squeeze(0) for tensor in (query, key, value, g, beta))
    out = torch.empty(v.shape, dtype=q.dtype, device=q.device)
    connected.dispatch("gated_delta", q, k, v, g, beta, out)
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


def _layers(mixer: nn.Module, memory: Callable[[str], tuple[torch.Tensor, ...]]) -> dict[str, Layer]:
    read: Any = mixer
    (windows,), (states,) = memory("short_conv"), memory("gated_delta")
    return {
        "short_conv": ShortConvLayer(
            weight=read.conv1d.weight.detach().squeeze(1),
            bias=read.conv1d.bias,
            state=windows,
            activation=_ACTIVATIONS[read.activation],
        ),
        "gated_delta": GatedDeltaLayer(state=states, scale=read.head_k_dim**-0.5, qk_l2norm=True),
    }


GATED_DELTA: Final = MixerContract(
    shapes=_shapes,
    layers=_layers,
    hooks={
        "causal_conv1d_fn": causal_conv1d_fn,
        "torch_chunk_gated_delta_rule": torch_chunk_gated_delta_rule,
    },
    packed=True,
)
