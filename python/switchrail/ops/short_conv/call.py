"""A call of `short_conv`, the causal convolution with state, and what backends do with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from switchrail.ops.backend import Backend
from switchrail.ops.batch import StateBatch
from switchrail.ops.call import Layer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ShortConvLayer(Layer):
    """A layer's half of a call; see `ShortConvBackend`."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    state: torch.Tensor
    activation: Literal["silu"] | None


class ShortConvCall(NamedTuple):
    """What a call of a layer brings; see `ShortConvBackend`."""

    layer: ShortConvLayer
    x: torch.Tensor
    out: torch.Tensor


class ShortConvBackend(Backend[ShortConvCall, StateBatch]):
    """Depthwise causal convolution along time, with the last W - 1 inputs of each sequence kept as its state.

    out[t, c] = activation(bias[c] + sum over j of weight[c, j] x[t - (W - 1) + j, c]), inputs before the
    sequence's first row coming from the state, oldest first.

    Shapes: x and out [T, C]; weight [C, W]; bias [C] or None; state logically [slots, C, W - 1] with the C
    axis contiguous in memory (strides (C (W - 1), 1, C)), of x's dtype or float32, updated in place. x may be
    a strided view with either axis contiguous; out is contiguous, of x's dtype.

    A feature: `checkpoints`, where states on the way are kept in slots of their own; the batch is a
    `CheckpointBatch`.
    """

    op = "short_conv"
    has_state = True


__all__ = ["ShortConvBackend", "ShortConvCall", "ShortConvLayer"]
