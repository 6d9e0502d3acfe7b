"""The dtypes that an engine computes in."""

from __future__ import annotations

from typing import Any

import torch

from switchrail import _core
from switchrail.errors import UnknownDtypeError

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def parse_dtype(dtype: str | torch.dtype | None, config: dict[str, Any], device: torch.device) -> torch.dtype:
    """The dtype that was asked for, or the default.

    Args:
        dtype: A name, a dtype, or None: the checkpoint's own; on a CPU float32, which it computes fastest.
        config: The checkpoint's configuration.
        device: Where the model runs.

    Raises:
        UnknownDtypeError: It is none that an engine computes in.
    """
    if dtype is None:
        own = config.get("dtype") or config.get("torch_dtype") or "float32"
        dtype = "float32" if device.type == "cpu" else own
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        valid = tuple(_DTYPES)
        nearest = tuple(_core.nearest(name, list(valid)))
        raise UnknownDtypeError(
            f"unknown dtype {name!r}; nearest: {', '.join(nearest) or 'none'}; valid: {', '.join(valid)}",
            name=name,
            valid=valid,
            nearest=nearest,
        )
    return _DTYPES[name]


__all__ = ["parse_dtype"]
