"""The contract of `short_conv`, the depthwise causal convolution with state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from switchrail.ops.backend import Backend
from switchrail.ops.batch import CheckpointBatch, RowStatesBatch, StateBatch
from switchrail.ops.call import Layer
from switchrail.ops.contract import COMPUTE, FLOATS, INPUT, Contract, OptionSpec, TensorSpec
from switchrail.ops.specs import STATE_NOTES, result, states


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ShortConvLayer(Layer):
    """The constant arguments of a layer; see `ShortConvBackend`."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    state: torch.Tensor
    activation: Literal["silu"] | None
    row_states: torch.Tensor | None = None


class ShortConvCall(NamedTuple):
    """The arguments of one call; see `ShortConvBackend`."""

    layer: ShortConvLayer
    x: torch.Tensor
    out: torch.Tensor


class ShortConvBackend(Backend[ShortConvCall, StateBatch]):
    """Depthwise causal convolution along time. Each sequence keeps its last W - 1 inputs as its state.

    out[t, c] = activation(bias[c] + sum over j of weight[c, j] x[t - (W - 1) + j, c]). The inputs before the
    sequence's first row come from the state, oldest first.

    Shapes: x and out [T, C]; weight [C, W] and bias [C] (or None), float32 or x's dtype; state logically
    [slots, C, W - 1] with the C axis contiguous in memory (strides (C (W - 1), 1, C)), of x's dtype or
    float32, updated in place. x may be a strided view if either axis is contiguous; out is contiguous, of x's
    dtype.

    Optional features with their own batches:

    - `checkpoints` (`CheckpointBatch`): also stores intermediate states in other slots of `state`.
    - `row_states` (`RowStatesBatch`): stores the state after each drafted row in `row_states`, or in `state`
      if `row_states` is None.
    """

    op = "short_conv"


CONTRACT = Contract(
    op="short_conv",
    call=ShortConvCall,
    layer=ShortConvLayer,
    tensors={
        "x": TensorSpec(axes=("T", "C"), dtypes=FLOATS, unit_stride=("C", "T"), about="inputs"),
        "weight": TensorSpec(
            axes=("C", "W"),
            dtypes=(INPUT, COMPUTE),
            memory=("C", "W"),
            about="taps, oldest first; W is 2 or more",
        ),
        "bias": TensorSpec(
            axes=("C",), dtypes=(INPUT, COMPUTE), memory=("C",), optional=True, about="added bias"
        ),
        **states(
            *("slots", "C", "W-1"),
            memory=("slots", "W-1", "C"),
            dtypes=(INPUT, COMPUTE),
            free=2,
            about="pool of the last W - 1 inputs, oldest first",
        ),
        "out": result("T", "C"),
    },
    options={
        "activation": OptionSpec(types=(str, type(None)), values=("silu", None), about="applied to the sum")
    },
    batch_features={"checkpoints": CheckpointBatch, "row_states": RowStatesBatch},
    notes=(
        "the state holds inputs, not outputs; after fewer than W - 1 rows it keeps part of the old state",
        "a slot that is not read may hold anything",
        *STATE_NOTES,
    ),
)
