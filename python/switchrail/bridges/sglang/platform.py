"""A Switchrail platform as SGLang's.

A distribution with a platform for Switchrail declares the same platform for SGLang with an entry point:

    [project.entry-points."sglang.srt.platforms"]
    acme = "switchrail.bridges.sglang.platform:activate"
"""

from __future__ import annotations


def activate() -> str | None:
    """The path of SGLang's platform class if this process has a plugin's platform; else SGLang chooses."""
    from switchrail.current import current_runtime

    is_plugins = current_runtime().platform.kind.startswith("oot:")
    return "switchrail.bridges.sglang.srt_platform:SwitchrailPlatform" if is_plugins else None


__all__ = ["activate"]
