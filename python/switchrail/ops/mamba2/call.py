"""A call of `mamba2`, the selective state space of Mamba 2, and what backends do with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from switchrail.ops.backend import Backend
from switchrail.ops.batch import StateBatch
from switchrail.ops.call import Layer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Mamba2Layer(Layer):
    """A layer's half of a call; see `Mamba2Backend`."""

    A: torch.Tensor
    D: torch.Tensor | None
    dt_bias: torch.Tensor | None
    state: torch.Tensor
    dt_softplus: bool
    dt_min: float
    dt_max: float


class Mamba2Call(NamedTuple):
    """What a call of a layer brings; see `Mamba2Backend`."""

    layer: Mamba2Layer
    x: torch.Tensor
    B: torch.Tensor
    C: torch.Tensor
    dt: torch.Tensor
    out: torch.Tensor


class Mamba2Backend(Backend[Mamba2Call, StateBatch]):
    """The selective state space of Mamba 2 (Dao and Gu, "Transformers are SSMs", arXiv 2405.21060).

    The time step of a head is dt + dt_bias, then softplus of it if `dt_softplus`, then held between `dt_min`
    and `dt_max`. With h the [P, S] state of a head, for each token: h <- exp(dt A) h + dt x B^T; out =
    h C + D x.

    Shapes: x and out [T, H, P]; B and C [T, G, S], H a multiple of G, head i using group i // (H / G); dt
    [T, H], float32 or x's dtype; A [H] float32, 0 or less (-exp of a model's A_log); D and dt_bias [H],
    float32 or x's dtype, or None; state [slots, H, P, S] float32 or bfloat16, updated in place. x, B and C
    may be strided views with their last axis contiguous; out is contiguous, of x's dtype.

    A feature: `checkpoints`, where states on the way are kept in slots of their own; the batch is a
    `CheckpointBatch`.
    """

    op = "mamba2"
    has_state = True


__all__ = ["Mamba2Backend", "Mamba2Call", "Mamba2Layer"]
