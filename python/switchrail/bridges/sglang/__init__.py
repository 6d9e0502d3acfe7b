"""Serves SGLang's linear attention and full attention layers with Switchrail's backends, on SGLang's memory.

SGLang finds this bridge by its entry point in each of its processes. `--linear-attn-backend switchrail` then
lets the core decide, and `switchrail:NAME` chooses a backend by name; the same holds for
`--linear-attn-decode-backend` and `--linear-attn-prefill-backend`, which mix with SGLang's own names.
Nothing changes for a server that asks for none of these names.
"""

from __future__ import annotations

from importlib.metadata import version

from switchrail.bridges.sglang.versions import places_of


def activate() -> None:
    """Loads Switchrail's plugins and offers their backends to SGLang; the target of the entry point.

    Raises:
        BridgeError: SGLang's version is not among the known ones. SGLang logs this, and runs without.
    """
    places = places_of(version("sglang"))

    from switchrail.bridges.sglang import attention, linear, names
    from switchrail.current import current_runtime

    runtime = current_runtime()
    runtime.load()
    names.offer(runtime, places)
    linear.attach(runtime, places)
    attention.attach(runtime, places)


__all__ = ["activate"]
