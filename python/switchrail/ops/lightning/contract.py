"""The contract of `lightning`, linear attention with a constant decay per head (arXiv 2405.17381)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from switchrail.ops.backend import Backend
from switchrail.ops.batch import StateBatch
from switchrail.ops.call import Layer
from switchrail.ops.contract import COMPUTE, Contract, TensorSpec
from switchrail.ops.specs import (
    FINITE_SLOTS,
    RECURRENT_BATCHES,
    SMALL_DECAY,
    STATE_NOTES,
    qkv_rows,
    result,
    scale,
    states,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LightningLayer(Layer):
    """The constant arguments of a layer; see `LightningBackend`."""

    g: torch.Tensor
    state: torch.Tensor
    scale: float
    row_states: torch.Tensor | None = None


class LightningCall(NamedTuple):
    """The arguments of one call; see `LightningBackend`."""

    layer: LightningLayer
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor


class LightningBackend(Backend[LightningCall, StateBatch]):
    """Lightning attention (Qin et al., arXiv 2405.17381): linear attention with a constant decay per head.

    With S the [V, K] state of a head, for each token: S <- exp(g) S + v k^T; out = scale S q.

    Shapes: q and k [T, H, K]; v and out [T, H, V]; g [H] float32, the log of the decay, <= 0 (the negated
    slope of MiniMax and Ring); state [slots, H, V, K] float32, bfloat16 or float16, updated in place. q, k
    and v may be strided views if their last axis is contiguous; out is contiguous, of q's dtype.

    Optional features with their own batches:

    - `checkpoints` (`CheckpointBatch`): also stores intermediate states in other slots of `state`.
    - `row_states` (`RowStatesBatch`): stores the state after each drafted row in `row_states`, or in `state`
      if `row_states` is None.
    - `deferred_commit` (`DeferredBatch`): leaves the commit of a verification to the next one.
    """

    op = "lightning"


CONTRACT = Contract(
    op="lightning",
    call=LightningCall,
    layer=LightningLayer,
    tensors={
        **qkv_rows("H"),
        "g": TensorSpec(
            axes=("H",), dtypes=(COMPUTE,), memory=("H",), about="log of the decay, the same for all tokens"
        ),
        **states("slots", "H", "V", "K"),
        "out": result("T", "H", "V"),
    },
    options={"scale": scale("queries")},
    batch_features=RECURRENT_BATCHES,
    state_layout="VK",
    gate={"space": "log", "kind": "activated, one value per head", "range": "-inf to 0, both included"},
    notes=(SMALL_DECAY, FINITE_SLOTS, *STATE_NOTES),
)
