"""The contract of `lightning`, linear attention with a constant decay a head (arXiv 2405.17381)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from switchrail.ops.backend import Backend
from switchrail.ops.batch import CheckpointBatch, StateBatch
from switchrail.ops.call import Layer
from switchrail.ops.contract import COMPUTE, FLOATS, INPUT, STATE_SLOTS, Contract, OptionSpec, TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LightningLayer(Layer):
    """A layer's half of a call; see `LightningBackend`."""

    g: torch.Tensor
    state: torch.Tensor
    scale: float


class LightningCall(NamedTuple):
    """What a call of a layer brings; see `LightningBackend`."""

    layer: LightningLayer
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor


class LightningBackend(Backend[LightningCall, StateBatch]):
    """Lightning attention (Qin et al., arXiv 2405.17381): linear attention with a constant decay a head.

    With S the [V, K] state of a head, for each token: S <- exp(g) S + v k^T; out = scale S q.

    Shapes: q and k [T, H, K]; v and out [T, H, V]; g [H] float32, the log of the decay, <= 0 (MiniMax's and
    Ring's slope, negated); state [slots, H, V, K] float32 or bfloat16, updated in place. q, k and v may be
    strided views with their last axis contiguous; out is contiguous, of q's dtype.

    A feature: `checkpoints`, where states on the way are kept in slots of their own; the batch is a
    `CheckpointBatch`.
    """

    op = "lightning"
    has_state = True


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

__all__ = ["CONTRACT", "LightningBackend", "LightningCall", "LightningLayer"]
