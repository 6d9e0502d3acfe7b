"""The contract of `short_conv`, the depthwise causal convolution with state."""

from __future__ import annotations

from switchrail.ops.batch import CheckpointBatch, StateBatch
from switchrail.ops.contract import COMPUTE, FLOATS, INPUT, STATE_SLOTS, Contract, OptionSpec, TensorSpec
from switchrail.ops.short_conv.call import ShortConvCall, ShortConvLayer

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
        "state": TensorSpec(
            axes=("slots", "C", "W-1"),
            dtypes=(INPUT, COMPUTE),
            memory=("slots", "W-1", "C"),
            mutated=True,
            about="pool of the last W - 1 inputs, oldest first",
        ),
        "out": TensorSpec(
            axes=("T", "C"), dtypes=(INPUT,), memory=("T", "C"), mutated=True, about="the result"
        ),
    },
    options={
        "activation": OptionSpec(types=(str, type(None)), values=("silu", None), about="applied to the sum"),
    },
    batch=STATE_SLOTS,
    batch_type=StateBatch,
    batch_features={"checkpoints": CheckpointBatch},
    notes=(
        "the state holds inputs, not outputs; fewer than W - 1 rows shift the rest of the old state in",
        "a slot that is not read may hold anything",
        "a sequence of padding writes zeros into its rows of out and no state",
        "a sequence of length zero keeps its state: no slot is read or written",
        "out may not overlap any other tensor",
    ),
)

__all__ = ["CONTRACT"]
