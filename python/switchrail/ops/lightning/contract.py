"""The contract of `lightning`, linear attention with a constant decay a head (arXiv 2405.17381)."""

from __future__ import annotations

from switchrail.ops.batch import CheckpointBatch, StateBatch
from switchrail.ops.contract import COMPUTE, FLOATS, INPUT, STATE_SLOTS, Contract, OptionSpec, TensorSpec
from switchrail.ops.lightning.call import LightningCall, LightningLayer

CONTRACT = Contract(
    op="lightning",
    call=LightningCall,
    layer=LightningLayer,
    tensors={
        "q": TensorSpec(axes=("T", "H", "K"), dtypes=FLOATS, unit_stride=("K",), about="queries"),
        "k": TensorSpec(axes=("T", "H", "K"), dtypes=(INPUT,), unit_stride=("K",), about="keys"),
        "v": TensorSpec(axes=("T", "H", "V"), dtypes=(INPUT,), unit_stride=("V",), about="values"),
        "g": TensorSpec(
            axes=("H",), dtypes=(COMPUTE,), memory=("H",), about="log of the decay, the same for all tokens"
        ),
        "state": TensorSpec(
            axes=("slots", "H", "V", "K"),
            dtypes=(COMPUTE, "bfloat16"),
            memory=("slots", "H", "V", "K"),
            mutated=True,
            about="pool of recurrent states",
        ),
        "out": TensorSpec(
            axes=("T", "H", "V"), dtypes=(INPUT,), memory=("T", "H", "V"), mutated=True, about="the result"
        ),
    },
    options={"scale": OptionSpec(types=(float,), finite_nonzero=True, about="factor of the queries")},
    batch=STATE_SLOTS,
    batch_type=StateBatch,
    batch_features={"checkpoints": CheckpointBatch},
    state_layout="VK",
    gate={"space": "log", "kind": "activated, one value a head", "range": "-inf to 0, both included"},
    notes=(
        "g = -inf is a decay of exactly 0; a backend may take any g below -80 as -inf",
        "a slot that is read holds finite numbers; a slot that is not read may hold anything",
        "a sequence of padding writes zeros into its rows of out and no state",
        "a sequence of length zero keeps its state: no slot is read or written",
        "out may not overlap any other tensor",
    ),
)

__all__ = ["CONTRACT"]
