"""What a call of the delta rule brings, whatever its gates are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch

from switchrail.ops.call import Layer
from switchrail.ops.gates import GateKind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DeltaLayer(Layer):
    """A layer's half of a call; see `GatedDeltaBackend` and `KdaBackend`."""

    state: torch.Tensor
    scale: float
    qk_l2norm: bool
    gate: GateKind | None = None
    A_log: torch.Tensor | None = None
    dt_bias: torch.Tensor | None = None
    lower_bound: float | None = None
    beta_scale: float | None = None


class DeltaCall(NamedTuple):
    """What a call of a layer brings; see `GatedDeltaBackend` and `KdaBackend`."""

    layer: DeltaLayer
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    out: torch.Tensor


DeltaCallT = TypeVar("DeltaCallT", bound=DeltaCall)

__all__ = ["DeltaCall", "DeltaCallT", "DeltaLayer"]
