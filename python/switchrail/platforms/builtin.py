"""The built-in device families, and the detection of this machine's family."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Final

from switchrail.errors import PlatformError
from switchrail.nearest import nearest
from switchrail.platforms.platform import Platform

if TYPE_CHECKING:
    import torch

_CLASSES: Final = {
    "cuda": "switchrail.platforms.cuda:CudaPlatform",
    "rocm": "switchrail.platforms.cuda:RocmPlatform",
    "musa": "switchrail.platforms.others:MusaPlatform",
    "npu": "switchrail.platforms.others:NpuPlatform",
    "xpu": "switchrail.platforms.others:XpuPlatform",
    "tpu": "switchrail.platforms.others:TpuPlatform",
    "mps": "switchrail.platforms.others:MpsPlatform",
    "cpu": "switchrail.platforms.cpu:CpuPlatform",
}

KINDS: Final = tuple(_CLASSES)
"""The kinds of the built-in families, in the order of detection; the CPU comes last."""

_TORCH_TYPES: Final = {kind: kind for kind in KINDS} | {"rocm": "cuda", "tpu": "xla"}


def platform_class(kind: str) -> type[Platform]:
    """The platform class of a kind in `KINDS`."""
    found: type[Platform] = resolve_name(_CLASSES[kind])
    return found


def detect(device: str | torch.device | None = None) -> Platform:
    """The built-in platform for a device. Platform plugins are not considered.

    Args:
        device: A kind (`rocm`) or torch's name of a device type (`cuda`), each with or without an index
            (`cuda:1`); or a `torch.device`. None means the first kind with a device on this machine.

    Raises:
        PlatformError: There is no such device; the error lists the devices on this machine. Also raised if a
            package that adds a family to torch is installed but can't be imported.
    """
    if device is None:
        return next(cls() for cls in map(platform_class, KINDS) if cls.hardware_class.devices())
    family, _, index = str(device).partition(":")
    for kind, torch_type in _TORCH_TYPES.items():
        if family in (kind, torch_type):
            cls = platform_class(kind)
            there = cls.hardware_class.devices()
            if there and not index:
                return cls()
            if f"{torch_type}:{index}" in there or (family, index) == ("cpu", "0"):
                return cls(f"{torch_type}:{index}")
    raise no_such_device(device)


def no_such_device(device: object, others: tuple[str, ...] = ()) -> PlatformError:
    """The error for a device or platform that does not exist.

    Args:
        device: The requested device or platform.
        others: Other valid names, besides the devices on this machine.
    """
    valid = (*_available(), *others)
    near, hint = ((), "") if is_builtin(device) else nearest(device, valid)
    return PlatformError(
        f"there is no device {str(device)!r} here{hint}; valid: {', '.join(valid)}",
        found=str(device),
        valid=valid,
        nearest=near,
    )


def is_builtin(device: object) -> bool:
    """Whether a name is a built-in kind or torch's name of one, with or without an index."""
    family = str(device).partition(":")[0]
    return family in _TORCH_TYPES or family in _TORCH_TYPES.values()


def _available() -> tuple[str, ...]:
    found: list[str] = []
    for kind in reversed(KINDS):
        try:
            found += platform_class(kind).hardware_class.devices()
        except PlatformError:  # the family's package can't be imported, so its devices are unknown
            continue
    return tuple(found)
