"""Makes a plugin's platform SGLang's platform too.

The distribution with the plugin declares an entry point:

    [project.entry-points."sglang.srt.platforms"]
    acme = "switchrail.bridges.sglang.platform:activate"
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from switchrail.runtime import Runtime


def activate() -> str | None:
    """The path of `SwitchrailPlatform` if a plugin provides the platform; None lets SGLang choose."""
    from switchrail.current import current_runtime

    path = "switchrail.bridges.sglang.srt_platform:SwitchrailPlatform"
    return path if has_plugins_platform(current_runtime()) else None


def has_plugins_platform(runtime: Runtime) -> bool:
    """Whether a plugin provides a runtime's platform."""
    return runtime.platform.kind.startswith("oot:")
