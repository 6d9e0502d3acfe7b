"""Serves SGLang's layers with Switchrail's backends, on SGLang's memory.

Each process of SGLang finds this bridge by its entry point. With `--linear-attn-backend switchrail`,
Switchrail chooses the backends of the layers with states; `switchrail:NAME` names one backend.
`--linear-attn-decode-backend`, `--linear-attn-prefill-backend` and, in SGLang 0.5.23,
`--linear-attn-verify-backend` also accept these names, and so does `--attention-backend`, for softmax
attention (MLA too). A server without these names runs its layers with SGLang's own kernels, unless a plugin's
platform makes them the default (see `platform`).
"""

from __future__ import annotations

from contextlib import ExitStack
from importlib import metadata
from typing import TYPE_CHECKING

from switchrail.bridges.sglang.versions import version_of

if TYPE_CHECKING:
    from switchrail.hooks import Hook, Hooks


def activate() -> None:
    """Loads Switchrail's plugins and offers their backends to SGLang. The entry point calls this function.

    If this fails, SGLang's lists of choices are restored and the bridge's hooks are removed.

    Raises:
        BridgeError: The bridge doesn't know SGLang's version. SGLang logs this, and runs without the bridge.
    """
    version = version_of(metadata.version("sglang"))

    from switchrail.bridges.sglang import asked, attention, linear, listing, mixers, names
    from switchrail.current import current_runtime

    runtime = current_runtime()
    runtime.load()
    hooks = runtime.hooks
    before = _all(hooks)
    with ExitStack() as undo:
        undo.callback(lambda: hooks.remove(*(_all(hooks) - before)))
        names.offer(runtime, version, undo)
        asked.attach(runtime, version)
        listing.attach(runtime, version)
        linear.attach(runtime, version)
        mixers.attach(runtime, version)
        attention.attach(runtime, version)
        undo.pop_all()


def _all(hooks: Hooks) -> set[Hook]:
    return {*hooks.list(), *hooks.waiting()}


__all__ = ["activate"]
