"""Serves SGLang's linear attention and full attention layers with Switchrail's backends, on SGLang's memory.

SGLang finds this bridge by its entry point in each of its processes. `--linear-attn-backend switchrail` then
lets the core decide, and `switchrail:NAME` chooses a backend by name. `--linear-attn-decode-backend` and
`--linear-attn-prefill-backend` accept the same names, beside SGLang's own. A server that uses none of these
names is unaffected.
"""

from __future__ import annotations

from contextlib import ExitStack
from importlib.metadata import version
from typing import TYPE_CHECKING

from switchrail.bridges.sglang.versions import places_of

if TYPE_CHECKING:
    from switchrail.hooks import Hook, Hooks


def activate() -> None:
    """Loads Switchrail's plugins and offers their backends to SGLang; the target of the entry point.

    If this fails, it restores SGLang's lists of choices and removes the bridge's hooks.

    Raises:
        BridgeError: The bridge doesn't know SGLang's version. SGLang logs this, and runs without the bridge.
    """
    places = places_of(version("sglang"))

    from switchrail.bridges.sglang import asked, attention, linear, listing, mixers, names
    from switchrail.current import current_runtime

    runtime = current_runtime()
    runtime.load()
    hooks = runtime.hooks
    before = _all(hooks)
    with ExitStack() as undo:
        undo.callback(lambda: hooks.remove(*(_all(hooks) - before)))
        names.offer(runtime, places, undo)
        asked.attach(runtime, places)
        listing.attach(runtime, places)
        linear.attach(runtime, places)
        mixers.attach(runtime, places)
        attention.attach(runtime, places)
        undo.pop_all()


def _all(hooks: Hooks) -> set[Hook]:
    return {*hooks.list(), *hooks.waiting()}


__all__ = ["activate"]
