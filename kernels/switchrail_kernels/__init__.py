"""Triton kernels for switchrail, registered like any vendor's plugin.

Importing this package, and registering its backends, imports neither torch nor triton.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from switchrail.registration import Registry


def register(registry: Registry) -> None:
    """Registers the backend `triton` of each op: the target of this distribution's entry point.

    Where Triton's interpreter is switched on (`TRITON_INTERPRET=1`), the kernels run on CPU tensors as well, slowly.
    """
    from switchrail.registration import DeviceSupport

    devices: list[str | DeviceSupport] = [DeviceSupport("cuda", min_capability=(8, 0))]
    if os.environ.get("TRITON_INTERPRET") == "1":
        devices.append("cpu")
    for op, name in (("attention", "Attention"), ("gated_delta", "GatedDelta"), ("short_conv", "ShortConv")):
        registry.register(
            "triton",
            f"switchrail_kernels.{op}.triton:Triton{name}",
            op=op,
            devices=devices,
            dtypes=("float32", "float16", "bfloat16"),
            state_dtypes=("float32",) if op == "gated_delta" else None,
            state_layouts=("VK",) if op == "gated_delta" else None,
            packages=("triton",),
            priority=100,
        )


__all__ = ["register"]
