"""The dtypes that an engine computes in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from switchrail.errors import PlatformError, UnknownDtypeError
from switchrail.nearest import unknown
from switchrail.platforms import Hardware

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "float16", "bfloat16")
"""The dtypes that an engine supports if its hardware does."""


def choose_dtype(dtype: str | torch.dtype | None, config: dict[str, Any], hardware: Hardware) -> str:
    """The name of the requested or default dtype. Doesn't import torch.

    Args:
        dtype: A name or a dtype; None for the checkpoint's dtype, or for float32 if the configuration names
            no dtype or the device is a CPU, where float32 is the fastest.
        config: The checkpoint's configuration.
        hardware: The hardware of the model.

    Raises:
        PlatformError: The hardware reports none of `DTYPES`.
        UnknownDtypeError: The engine does not support the dtype on this hardware, or the configuration names
            a dtype other than `DTYPES` and float64.
    """
    if dtype is None:
        key = "dtype" if config.get("dtype") is not None else "torch_dtype"
        own = config.get(key)
        if own is not None and str(own).removeprefix("torch.") not in (*DTYPES, "float64"):
            problem = f"{key} is {own!r:.80} in the checkpoint's configuration"
            raise unknown(UnknownDtypeError, problem, own, DTYPES, name=own)
        dtype = "float32" if own is None or hardware.device.partition(":")[0] == "cpu" else own
    name = str(dtype).removeprefix("torch.")
    supported = hardware.supported_dtypes()
    valid = tuple(known for known in DTYPES if known in supported)
    if not valid:
        raise PlatformError(
            f"platform {hardware.kind!r} gives {supported!r} for supported_dtypes(); valid: names, at least "
            f"one of {', '.join(map(repr, DTYPES))}",
            found=supported,
        )
    if name not in valid:
        problem = (
            f"{hardware.device} does not compute in {name}" if name in DTYPES else f"unknown dtype {name!r}"
        )
        raise unknown(UnknownDtypeError, problem, name, valid, name=name)
    return name
