"""Kernels of switchrail's own and adapters to libraries of kernels, registered like any vendor's plugin.

Importing this package, and registering its backends, imports neither torch nor triton nor a library.
"""

from __future__ import annotations

import os
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from switchrail_kernels.claims import CAPABILITIES, COMMON, INTERPRETED, Claims

if TYPE_CHECKING:
    from switchrail.registration import Registry

BACKENDS: dict[tuple[str, str], tuple[str, Claims]] = {
    (folder.name, name): backend
    for folder in iter_modules(__path__)
    if folder.ispkg
    for name, backend in getattr(import_module(f"{__name__}.{folder.name}"), "BACKENDS", {}).items()
}
"""By op and backend, of all folders: the class in `switchrail_kernels.OP.BACKEND`, and what it claims."""


def register(registry: Registry) -> None:
    """Registers each backend of `BACKENDS`: the target of this distribution's entry point.

    Where Triton's interpreter is switched on (`TRITON_INTERPRET=1`), the kernels in Triton run on CPU tensors
    as well, so slowly that they are never chosen unasked.
    """
    from switchrail.registration import DeviceSupport

    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    for (op, name), (attribute, own) in BACKENDS.items():
        claims: Claims = {
            "phases": ("prefill", "decode", "verify"),
            "devices": (DeviceSupport("cuda", *CAPABILITIES[name]),),
            **COMMON[name],
            **own,
        }
        if interpreted and name == "triton":
            devices = claims["devices"] + INTERPRETED["devices"]
            claims = {**claims, **INTERPRETED, "devices": devices}
        registry.register(name, f"switchrail_kernels.{op}.{name}:{attribute}", op=op, **claims)


__all__ = ["BACKENDS", "register"]
