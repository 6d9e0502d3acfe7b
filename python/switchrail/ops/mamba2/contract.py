"""The contract of `mamba2`, the selective state space of Mamba 2 (arXiv 2405.21060)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from switchrail.ops.backend import Backend
from switchrail.ops.batch import StateBatch
from switchrail.ops.call import Layer
from switchrail.ops.contract import COMPUTE, FLOATS, INPUT, Contract, OptionSpec, TensorSpec
from switchrail.ops.specs import FINITE_SLOTS, RECURRENT_BATCHES, STATE_NOTES, result, rows, states


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Mamba2Layer(Layer):
    """The constant arguments of a layer; see `Mamba2Backend`."""

    A: torch.Tensor
    D: torch.Tensor | None
    dt_bias: torch.Tensor | None
    state: torch.Tensor
    dt_softplus: bool
    dt_min: float
    dt_max: float
    row_states: torch.Tensor | None = None


class Mamba2Call(NamedTuple):
    """The arguments of one call; see `Mamba2Backend`."""

    layer: Mamba2Layer
    x: torch.Tensor
    B: torch.Tensor
    C: torch.Tensor
    dt: torch.Tensor
    out: torch.Tensor


class Mamba2Backend(Backend[Mamba2Call, StateBatch]):
    """The selective state space of Mamba 2 (Dao and Gu, "Transformers are SSMs", arXiv 2405.21060).

    The time step of a head is dt + dt_bias, or its softplus if `dt_softplus`, clamped to the range from
    `dt_min` to `dt_max`. With s the time step and h the [P, S] state of a head, for each token:
    h <- exp(s A) h + s x B^T; out = h C + D x.

    Shapes: x and out [T, H, P]; B and C [T, G, S], H a multiple of G (head i uses group i // (H / G)); dt [T,
    H], float32 or x's dtype; A [H] float32, <= 0 (-exp of a model's A_log); D and dt_bias [H], float32 or x's
    dtype, or None; state [slots, H, P, S] float32, bfloat16 or float16, updated in place. x, B and C may be
    strided views if their last axis is contiguous; out is contiguous, of x's dtype.

    Optional features with their own batches:

    - `checkpoints` (`CheckpointBatch`): also stores intermediate states in other slots of `state`.
    - `row_states` (`RowStatesBatch`): stores the state after each drafted row in `row_states`, or in `state`
      if `row_states` is None.
    - `deferred_commit` (`DeferredBatch`): leaves the commit of a verification to the next one.
    """

    op = "mamba2"


CONTRACT = Contract(
    op="mamba2",
    call=Mamba2Call,
    layer=Mamba2Layer,
    tensors={
        "x": rows("T", "H", "P", about="inputs", dtypes=FLOATS, time_innermost=True),
        "B": rows("T", "G", "S", about="directions in which inputs are written", time_innermost=True),
        "C": rows("T", "G", "S", about="directions in which outputs are read", time_innermost=True),
        "dt": TensorSpec(
            axes=("T", "H"),
            dtypes=(INPUT, COMPUTE),
            unit_stride=("T", "H"),
            about="time steps before dt_bias, softplus and bounds",
        ),
        "A": TensorSpec(
            axes=("H",), dtypes=(COMPUTE,), memory=("H",), about="log of the decay per unit of time, <= 0"
        ),
        "D": TensorSpec(
            axes=("H",),
            dtypes=(INPUT, COMPUTE),
            memory=("H",),
            optional=True,
            about="weight of the skip connection",
        ),
        "dt_bias": TensorSpec(
            axes=("H",), dtypes=(INPUT, COMPUTE), memory=("H",), optional=True, about="added to dt"
        ),
        **states("slots", "H", "P", "S"),
        "out": result("T", "H", "P"),
    },
    options={
        "dt_softplus": OptionSpec(types=(bool,), about="whether softplus is applied to dt + dt_bias"),
        "dt_min": OptionSpec(
            types=(float,),
            about="lower bound of the time step, applied after softplus and before dt_max; 0 or more",
        ),
        "dt_max": OptionSpec(types=(float,), about="upper bound of the time step; inf for none"),
    },
    batch_features=RECURRENT_BATCHES,
    multiples=(("H", "G"),),
    state_layout="VK",
    gate={
        "space": "log",
        "kind": (
            "A times the time step; dt is raw if dt_softplus (softplus is applied to dt + dt_bias), "
            "else already activated; one value per head"
        ),
        "range": "finite, 0 or less",
    },
    notes=(
        "head i uses group i // (H / G) of B and C",
        "if A times a time step is below -80, a backend may treat it as -inf",
        "in the state layout, P corresponds to V and S to K",
        FINITE_SLOTS,
        *STATE_NOTES,
    ),
)
