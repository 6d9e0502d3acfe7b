"""Lets a platform for Switchrail be SGLang's platform too.

A distribution with a platform for Switchrail declares it for SGLang with an entry point:

    [project.entry-points."sglang.srt.platforms"] acme = "switchrail.bridges.sglang.platform:activate"
"""

from __future__ import annotations


def activate() -> str | None:
    """The path of `SwitchrailPlatform` if this process has a plugin's platform; None lets SGLang choose."""
    from switchrail.current import current_runtime

    is_plugins = current_runtime().platform.kind.startswith("oot:")
    return "switchrail.bridges.sglang.srt_platform:SwitchrailPlatform" if is_plugins else None


__all__ = ["activate"]
