"""Acme's device family, and its backends. Importing this module does not import torch.

Acme has no hardware: its devices are other devices under another name. `ACME_DEVICE` names the real device in
torch's form (`cpu`, `cuda:0`). Without this variable, the machine has no Acme device.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from switchrail import Registry

VARIABLE = "ACME_DEVICE"

BACKENDS = {
    "attention": "switchrail.ops.attention.torch:TorchAttention",
    "gated_delta": "switchrail.ops.gated_delta.torch:TorchGatedDelta",
    "short_conv": "switchrail.ops.short_conv.torch:TorchShortConv",
}


def activate() -> str | None:
    """Return the path of the platform's class, or None if the machine has no Acme device.

    This is the target of the entry point in `switchrail.platforms`.
    """
    return "acme_platform.platform:AcmePlatform" if os.environ.get(VARIABLE) else None


def register(registry: Registry) -> None:
    """Register backends for the family; the target of the entry point in `switchrail.plugins`."""
    for op, path in BACKENDS.items():
        features = ("transposed_state",) if op == "short_conv" else ()
        registry.register("acme_ops", path, op=op, devices=("oot:acme",), features=features)
