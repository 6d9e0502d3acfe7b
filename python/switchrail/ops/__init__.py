"""The ops, each with its contract, reference and plain-torch backend.

Names are imported on first use, so importing this package does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from switchrail.ops.catalog import DEFINITIONS

if TYPE_CHECKING:
    from switchrail.ops.attention.contract import AttentionBackend, AttentionCall, AttentionLayer
    from switchrail.ops.backend import Backend
    from switchrail.ops.batch import (
        Bounds,
        CheckpointBatch,
        DeferredBatch,
        PagedBatch,
        PagedTreeBatch,
        Phase,
        RowStatesBatch,
        SequenceBatch,
        StateBatch,
        VerifyBatch,
    )
    from switchrail.ops.call import Layer, make_call
    from switchrail.ops.catalog import CONTRACTS
    from switchrail.ops.contract import Allowance, Contract, OptionSpec, TensorSpec
    from switchrail.ops.gated_delta.contract import GatedDeltaBackend, GatedDeltaCall, GatedDeltaLayer
    from switchrail.ops.kda.contract import KdaBackend, KdaCall, KdaLayer
    from switchrail.ops.lightning.contract import LightningBackend, LightningCall, LightningLayer
    from switchrail.ops.mamba2.contract import Mamba2Backend, Mamba2Call, Mamba2Layer
    from switchrail.ops.mla.contract import MlaBackend, MlaCall, MlaLayer
    from switchrail.ops.short_conv.contract import ShortConvBackend, ShortConvCall, ShortConvLayer

_HOMES = {
    "Allowance": "contract",
    "Backend": "backend",
    "Bounds": "batch",
    "CONTRACTS": "catalog",
    "CheckpointBatch": "batch",
    "Contract": "contract",
    "Layer": "call",
    "OptionSpec": "contract",
    "PagedBatch": "batch",
    "PagedTreeBatch": "batch",
    "Phase": "batch",
    "DeferredBatch": "batch",
    "RowStatesBatch": "batch",
    "SequenceBatch": "batch",
    "StateBatch": "batch",
    "TensorSpec": "contract",
    "VerifyBatch": "batch",
    "make_call": "call",
    **{
        f"{definition.stem}{part}": f"{op}.contract"
        for op, definition in DEFINITIONS.items()
        for part in ("Backend", "Call", "Layer")
    },
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


__all__ = [
    "CONTRACTS",
    "Allowance",
    "AttentionBackend",
    "AttentionCall",
    "AttentionLayer",
    "Backend",
    "Bounds",
    "CheckpointBatch",
    "Contract",
    "DeferredBatch",
    "GatedDeltaBackend",
    "GatedDeltaCall",
    "GatedDeltaLayer",
    "KdaBackend",
    "KdaCall",
    "KdaLayer",
    "Layer",
    "LightningBackend",
    "LightningCall",
    "LightningLayer",
    "Mamba2Backend",
    "Mamba2Call",
    "Mamba2Layer",
    "MlaBackend",
    "MlaCall",
    "MlaLayer",
    "OptionSpec",
    "PagedBatch",
    "PagedTreeBatch",
    "Phase",
    "RowStatesBatch",
    "SequenceBatch",
    "ShortConvBackend",
    "ShortConvCall",
    "ShortConvLayer",
    "StateBatch",
    "TensorSpec",
    "VerifyBatch",
    "make_call",
]
