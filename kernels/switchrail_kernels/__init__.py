"""Kernels of this project and adapters to kernel libraries, registered as a plugin.

Importing this package and registering its backends imports neither torch, nor triton, nor a kernel library.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from switchrail_kernels.claims import CAPABILITIES, COMMON, INTERPRETED, Claims

if TYPE_CHECKING:
    from switchrail.registration import Registry

_FOLDERS = {
    folder.name: import_module(f"{__name__}.{folder.name}")
    for folder in iter_modules(__path__)
    if folder.ispkg
}

BACKENDS: dict[tuple[str, str], tuple[str, Claims]] = {
    (op, name): backend
    for op, folder in _FOLDERS.items()
    for name, backend in getattr(folder, "BACKENDS", {}).items()
}
"""By op and backend: the name of the class in the module `switchrail_kernels.OP.BACKEND`, and its claims."""

OPERATIONS: dict[str, str] = {
    name: path for folder in _FOLDERS.values() for name, path in getattr(folder, "OPERATIONS", {}).items()
}
"""For each operation of `switchrail.platforms` with a kernel here: the path of the function that runs it."""


def register(registry: Registry) -> None:
    """Register all backends and operations. This function is the distribution's entry point.

    With Triton's interpreter (`TRITON_INTERPRET=1`), the Triton kernels also run on CPU tensors, but so
    slowly that they are never chosen by default.
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
    if find_spec("triton") is not None:
        for name, path in OPERATIONS.items():
            registry.operation(name, path, devices=(DeviceSupport("cuda", *CAPABILITIES["triton"]),))


__all__ = ["BACKENDS", "OPERATIONS", "register"]
