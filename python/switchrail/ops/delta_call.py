"""Calls and contracts of the delta rule, for all kinds of gates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch

from switchrail.ops.call import Layer
from switchrail.ops.contract import COMPUTE, INPUT, Contract, OptionSpec, TensorSpec
from switchrail.ops.gates import RAW_NEEDS, RAW_OPTIONS, GateKind, raw_tensors
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
class DeltaLayer(Layer):
    """The constant arguments of a layer; see `GatedDeltaBackend` and `KdaBackend`."""

    state: torch.Tensor
    scale: float
    qk_l2norm: bool
    gate: GateKind | None = None
    A_log: torch.Tensor | None = None
    dt_bias: torch.Tensor | None = None
    lower_bound: float | None = None
    beta_scale: float | None = None
    row_states: torch.Tensor | None = None


class DeltaCall(NamedTuple):
    """The arguments of one call; see `GatedDeltaBackend` and `KdaBackend`."""

    layer: DeltaLayer
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    out: torch.Tensor


DeltaCallT = TypeVar("DeltaCallT", bound=DeltaCall)


def delta_contract(
    op: str, call: type[DeltaCall], layer: type[DeltaLayer], *, decays: tuple[str, ...], each: str
) -> Contract:
    """Makes the contract of a delta-rule op.

    Args:
        op: The op.
        call: The class of the op's calls.
        layer: The class of the op's layers.
        decays: The axes of the decays of one token.
        each: The unit that has its own decay, such as `head`, for the description of the gate.
    """
    return Contract(
        op=op,
        call=call,
        layer=layer,
        tensors={
            **qkv_rows("HV"),
            "g": TensorSpec(
                axes=("T", *decays),
                dtypes=(COMPUTE,),
                unit_stride=("T", "HV") if decays == ("HV",) else decays[-1:],
                raw_with="gate",
                about="log of the decay, or the raw gate if `gate` is given",
            ),
            "beta": TensorSpec(
                axes=("T", "HV"),
                dtypes=(INPUT, COMPUTE),
                unit_stride=("T", "HV"),
                about="write weight, 0 to 2, or its raw value if `beta_scale` is given",
            ),
            **raw_tensors(decays),
            **states("slots", "HV", "V", "K"),
            "out": result("T", "HV", "V"),
        },
        options={
            "scale": scale("queries"),
            "qk_l2norm": OptionSpec(
                types=(bool,), about="whether q and k are first multiplied by rsqrt(sum of squares + 1e-6)"
            ),
            **RAW_OPTIONS,
        },
        batch_features=RECURRENT_BATCHES,
        multiples=(("HV", "H"),),
        needs=RAW_NEEDS,
        state_layout="VK",
        gate={
            "space": "log",
            "kind": f"activated, or raw if `gate` is given; one value per {each}",
            "range": "-inf to 0, both included, for the activated gate; a raw gate may also be positive",
        },
        notes=("value head i uses q/k head i // (HV / H)", SMALL_DECAY, FINITE_SLOTS, *STATE_NOTES),
    )
