"""Platforms for devices of other machines, for which plans can be made but nothing can run."""

from __future__ import annotations

import re

from switchrail.errors import PlatformError
from switchrail.nearest import nearest
from switchrail.platforms.builtin import KINDS, platform_class
from switchrail.platforms.hardware import Hardware
from switchrail.platforms.identity import DeviceCapability
from switchrail.platforms.platform import Platform

_FORM = re.compile(r"(\w+)(?::(\d+)\.(\d+))?", re.ASCII)
_WITH_CAPABILITY = ("cuda", "rocm", "musa")


def described(text: str) -> Platform:
    """A platform of a built-in kind, for plans only: its device need not exist, so nothing can run on it.

    Args:
        text: A kind and a compute capability, such as `cuda:9.0`, or only the name of a kind without
            capabilities, such as `cpu`.

    Raises:
        PlatformError: The text describes no device.
    """
    match = _FORM.fullmatch(text)
    kind = text if match is None else match[1]
    if match is None or kind not in KINDS or (match[2] is not None) != (kind in _WITH_CAPABILITY):
        forms = {name: f"{name}:MAJOR.MINOR" if name in _WITH_CAPABILITY else name for name in KINDS}
        valid = tuple(forms.values())
        near = tuple(forms[name] for name in ([kind] if kind in forms else nearest(kind, forms)[0]))
        hint = f"; nearest: {', '.join(near)}" if near else ""
        raise PlatformError(
            f"{text!r} describes no device{hint}; valid: {', '.join(valid)}; for example, cuda:9.0",
            found=text,
            valid=valid,
            nearest=near,
        )
    capability = None if match[2] is None else DeviceCapability(int(match[2]), int(match[3]))
    cls = platform_class(kind)

    class Described(cls.hardware_class):  # type: ignore[name-defined, misc]
        def __init__(self, device: str | None = None) -> None:
            Hardware.__init__(self, kind)

        def name(self) -> str:
            return f"{text}, which need not exist on this machine"

        def capability(self) -> DeviceCapability | None:
            return capability

        def total_memory(self) -> int | None:
            return None

    platform: Platform = type("DescribedPlatform", (cls,), {"hardware_class": Described})()
    return platform
