"""The ops: each one's contract, reference and plain-torch backend.

The names here are imported when they are first used, so that importing this package does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from switchrail.ops.backend import (
        AttentionBackend,
        Backend,
        GatedDeltaBackend,
        KdaBackend,
        LightningBackend,
        Mamba2Backend,
        MlaBackend,
        ShortConvBackend,
    )
    from switchrail.ops.batch import (
        CheckpointBatch,
        PagedBatch,
        PagedTreeBatch,
        Phase,
        SequenceBatch,
        StateBatch,
        VerifyBatch,
    )
    from switchrail.ops.catalog import CONTRACTS
    from switchrail.ops.contract import Contract, OptionSpec, TensorSpec

_HOMES = {
    "CONTRACTS": "catalog",
    "AttentionBackend": "backend",
    "Backend": "backend",
    "CheckpointBatch": "batch",
    "Contract": "contract",
    "GatedDeltaBackend": "backend",
    "KdaBackend": "backend",
    "LightningBackend": "backend",
    "Mamba2Backend": "backend",
    "MlaBackend": "backend",
    "OptionSpec": "contract",
    "PagedBatch": "batch",
    "PagedTreeBatch": "batch",
    "Phase": "batch",
    "SequenceBatch": "batch",
    "ShortConvBackend": "backend",
    "StateBatch": "batch",
    "TensorSpec": "contract",
    "VerifyBatch": "batch",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


__all__ = [
    "CONTRACTS",
    "AttentionBackend",
    "Backend",
    "CheckpointBatch",
    "Contract",
    "GatedDeltaBackend",
    "KdaBackend",
    "LightningBackend",
    "Mamba2Backend",
    "MlaBackend",
    "OptionSpec",
    "PagedBatch",
    "PagedTreeBatch",
    "Phase",
    "SequenceBatch",
    "ShortConvBackend",
    "StateBatch",
    "TensorSpec",
    "VerifyBatch",
]
