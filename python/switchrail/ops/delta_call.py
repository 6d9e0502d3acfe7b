"""Calls of the delta rule and their contract, whatever its gates are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch

from switchrail.ops.batch import CheckpointBatch, StateBatch
from switchrail.ops.call import Layer
from switchrail.ops.contract import COMPUTE, FLOATS, INPUT, STATE_SLOTS, Contract, OptionSpec, TensorSpec
from switchrail.ops.gates import RAW_NEEDS, RAW_OPTIONS, GateKind, raw_tensors
from switchrail.ops.specs import FINITE_SLOTS, SMALL_DECAY, STATE_NOTES, result, rows, scale, states


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


def delta_contract(
    op: str, call: type[DeltaCall], layer: type[DeltaLayer], *, decays: tuple[str, ...], each: str
) -> Contract:
    """The contract of an op that is the delta rule.

    Args:
        op: The op.
        call: Its call.
        layer: The layer's half of it.
        decays: The axes of a token's decays.
        each: What has a decay of its own.
    """
    return Contract(
        op=op,
        call=call,
        layer=layer,
        tensors={
            "q": rows("T", "H", "K", about="queries", dtypes=FLOATS),
            "k": rows("T", "H", "K", about="keys"),
            "v": rows("T", "HV", "V", about="values"),
            "g": TensorSpec(
                axes=("T", *decays),
                dtypes=(COMPUTE,),
                unit_stride=("T", "HV") if decays == ("HV",) else decays[-1:],
                raw_with="gate",
                about="log of the decay, or what `gate` makes it of",
            ),
            "beta": TensorSpec(
                axes=("T", "HV"),
                dtypes=(INPUT, COMPUTE),
                unit_stride=("T", "HV"),
                about="weight of the write, 0 to 2, or what `beta_scale` makes it of",
            ),
            **raw_tensors(decays),
            "state": states("slots", "HV", "V", "K"),
            "out": result("T", "HV", "V"),
        },
        options={
            "scale": scale("queries"),
            "qk_l2norm": OptionSpec(
                types=(bool,), about="whether q and k are first multiplied by rsqrt(sum of squares + 1e-6)"
            ),
            **RAW_OPTIONS,
        },
        batch=STATE_SLOTS,
        batch_type=StateBatch,
        batch_features={"checkpoints": CheckpointBatch},
        multiples=(("HV", "H"),),
        needs=RAW_NEEDS,
        state_layout="VK",
        gate={
            "space": "log",
            "kind": f"activated, or raw as `gate` says; one value a {each}",
            "range": "-inf to 0, both included",
        },
        notes=("value head i uses q/k head i // (HV / H)", SMALL_DECAY, FINITE_SLOTS, *STATE_NOTES),
    )


__all__ = ["DeltaCall", "DeltaCallT", "DeltaLayer", "delta_contract"]
