"""Triton kernels for switchrail, registered like any vendor's plugin.

Importing this package, and registering its backends, imports neither torch nor triton.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from switchrail.registration import Registry

HEAD_SIZES = (8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
"""Of attention: those that models have, and that are tested; the kernels pad others as well."""

_GATED_DELTA_SIZES = (16, 24, 32, 48, 64, 96, 128, 192, 256)
GATED_DELTA_SIZES = tuple((k, v) for k in _GATED_DELTA_SIZES for v in _GATED_DELTA_SIZES)
"""Of q and k, and of v."""


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
    for op, name, head_sizes in (
        ("attention", "Attention", HEAD_SIZES),
        ("gated_delta", "GatedDelta", GATED_DELTA_SIZES),
        ("short_conv", "ShortConv", None),
    ):
        registry.register(
            "triton",
            f"switchrail_kernels.{op}.triton:Triton{name}",
            op=op,
            head_sizes=head_sizes,
            devices=devices,
            dtypes=("float32", "float16") if interpreted else ("float32", "float16", "bfloat16"),
            state_dtypes=("float32", "bfloat16") if op == "gated_delta" else None,
            state_layouts=("VK",) if op == "gated_delta" else None,
            packages=("triton>=3.6",),
            priority=-1000 if interpreted else 100,
        )


__all__ = ["register"]
