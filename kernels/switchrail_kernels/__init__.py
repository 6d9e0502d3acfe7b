"""Triton kernels for switchrail, registered like any vendor's plugin.

Importing this package, and registering its backends, imports neither torch nor triton.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from switchrail.registration import Registry

HEAD_SIZES = (8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
"""Of attention: those that models have, and that are tested; the kernels pad others as well."""

_RECURRENT_SIZES = (16, 24, 32, 48, 64, 96, 128, 192, 256)
RECURRENT_SIZES = tuple((k, v) for k in _RECURRENT_SIZES for v in _RECURRENT_SIZES)
"""Of q and k, and of v, in the ops with a recurrent state."""


def register(registry: Registry) -> None:
    """Registers the backend `triton` of each op: the target of this distribution's entry point.

    Where Triton's interpreter is switched on (`TRITON_INTERPRET=1`), the kernels run on CPU tensors as well,
    so slowly that they are never chosen unasked.
    """
    from switchrail.registration import DeviceSupport

    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    devices: list[str | DeviceSupport] = [DeviceSupport("cuda", min_capability=(8, 0))]
    if interpreted:
        devices.append("cpu")
    recurrent = {
        "head_sizes": RECURRENT_SIZES,
        "state_dtypes": ("float32", "bfloat16"),
        "state_layouts": ("VK",),
    }
    capabilities: dict[str, tuple[str, dict[str, Any]]] = {
        "attention": ("Attention", {"head_sizes": HEAD_SIZES}),
        "gated_delta": ("GatedDelta", recurrent),
        "kda": ("Kda", recurrent),
        "lightning": ("Lightning", recurrent),
        "mamba2": ("Mamba2", recurrent),
        "short_conv": ("ShortConv", {}),
    }
    for op, (name, capability) in capabilities.items():
        registry.register(
            "triton",
            f"switchrail_kernels.{op}.triton:Triton{name}",
            op=op,
            **capability,
            devices=devices,
            dtypes=("float32", "float16") if interpreted else ("float32", "float16", "bfloat16"),
            packages=("triton>=3.6",),
            priority=-1000 if interpreted else 100,
        )


__all__ = ["register"]
