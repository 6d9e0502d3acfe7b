"""Shapes and dtypes of the tensors of a call, from its op's contract."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from switchrail.ops.catalog import CONTRACTS
from switchrail.ops.contract import COMPUTE, INPUT, TensorSpec


def tensors_of(
    op: str, sizes: Mapping[str, int], dtype: torch.dtype
) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and dtype of each tensor of a call.

    Tensors of optional features are left out, and so are weights that would not change a size
    (`TensorSpec.same_if_none`).
    """
    found = {}
    for name, spec in CONTRACTS[op].tensors.items():
        if spec.feature is None and not _left_out(spec, sizes):
            shape = tuple(sizes[axis] + more for axis, more in spec.parsed_axes)
            found[name] = (shape, _dtype(spec, dtype))
    return found


def _left_out(spec: TensorSpec, sizes: Mapping[str, int]) -> bool:
    return spec.same_if_none is not None and len({sizes[axis] for axis in spec.same_if_none}) == 1


def _dtype(spec: TensorSpec, dtype: torch.dtype) -> torch.dtype:
    if INPUT in spec.dtypes or (COMPUTE not in spec.dtypes and len(spec.dtypes) > 2):
        return dtype
    return torch.float32
