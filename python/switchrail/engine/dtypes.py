"""The dtypes that an engine computes in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from switchrail.errors import PlatformError, UnknownDtypeError
from switchrail.nearest import unknown
from switchrail.platforms import Hardware

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "float16", "bfloat16")
"""The names of the dtypes that an engine computes in, where its hardware does."""


def choose_dtype(dtype: str | torch.dtype | None, config: dict[str, Any], hardware: Hardware) -> str:
    """The name of the dtype that was asked for, or of the default. Doesn't import torch.

    Args:
        dtype: A name, a dtype, or None: the checkpoint's own; on a CPU float32, which it computes fastest.
        config: The checkpoint's configuration.
        hardware: Where the model runs.

    Raises:
        PlatformError: The hardware names no such dtype.
        UnknownDtypeError: It is none that an engine on this hardware computes in, or the configuration names
            none that weights can have.
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
            f"platform {hardware.kind!r} gives {supported!r} for supported_dtypes(); valid: names, such as "
            f"{', '.join(map(repr, DTYPES))}",
            found=supported,
        )
    if name not in valid:
        problem = (
            f"{hardware.device} does not compute in {name}" if name in DTYPES else f"unknown dtype {name!r}"
        )
        raise unknown(UnknownDtypeError, problem, name, valid, name=name)
    return name


__all__ = ["DTYPES", "choose_dtype"]
