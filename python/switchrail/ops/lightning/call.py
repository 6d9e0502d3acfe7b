"""A call of `lightning`, lightning attention, and what backends do with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from switchrail.ops.backend import Backend
from switchrail.ops.batch import StateBatch
from switchrail.ops.call import Layer


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


__all__ = ["LightningBackend", "LightningCall", "LightningLayer"]
