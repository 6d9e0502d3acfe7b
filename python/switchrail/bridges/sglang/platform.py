"""Lets a platform for Switchrail be SGLang's platform too.

A distribution with a platform for Switchrail declares it for SGLang with an entry point:

    [project.entry-points."sglang.srt.platforms"] acme = "switchrail.bridges.sglang.platform:activate"
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from switchrail.runtime import Runtime


def activate() -> str | None:
    """The path of `SwitchrailPlatform` if this process has a plugin's platform; None lets SGLang choose."""
    from switchrail.current import current_runtime

    path = "switchrail.bridges.sglang.srt_platform:SwitchrailPlatform"
    return path if has_plugins_platform(current_runtime()) else None


def has_plugins_platform(runtime: Runtime) -> bool:
    """Whether a runtime's platform is a plugin's. Then Switchrail is SGLang's default for linear layers."""
    return runtime.platform.kind.startswith("oot:")
