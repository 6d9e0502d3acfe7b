"""The hooks on SGLang's modules: Switchrail's, and those that plugins registered with SGLang itself."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from switchrail.bridges.sglang.names import OURS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from switchrail.bridges.sglang.versions import Version
    from switchrail.runtime import Runtime

_log = logging.getLogger("switchrail")
_REGISTRY = "sglang.srt.plugins.hook_registry"


class ListedHook(NamedTuple):
    """A hook on one of SGLang's functions or classes.

    Attributes:
        target: The dotted path of the target.
        kind: `before`, `after`, `around` or `replace`.
        source: The distribution or the plugin that added the hook; `unknown` if SGLang recorded neither.
        system: `switchrail` or `sglang`, depending on where the hook was registered.
    """

    target: str
    kind: str
    source: str
    system: str


def hooks(runtime: Runtime) -> list[ListedHook]:
    """A runtime's hooks on SGLang's modules, and the hooks registered with SGLang; sorted by target."""
    return sorted([*_ours(runtime), *_sglangs()])


def _ours(runtime: Runtime) -> Iterator[ListedHook]:
    for hook in {*runtime.hooks.list(), *runtime.hooks.waiting()}:
        if hook.target_name.split(".")[0] == "sglang":
            yield ListedHook(hook.target_name, hook.kind, hook.source, "switchrail")


def _sglangs() -> Iterator[ListedHook]:
    registered: dict[str, list[Any]] = import_module(_REGISTRY).HookRegistry._hooks
    for target, added in registered.items():
        for kind, _, source in added:
            name = "unknown" if source is None else source.dist_name or source.plugin_name
            yield ListedHook(target, kind.value, name, "sglang")


def attach(runtime: Runtime, version: Version) -> None:
    """Logs all hooks but Switchrail's own, just before a model runner creates its attention backends.

    By then SGLang has set up its log.
    """

    def log(model_runner: Any, *_: Any, **__: Any) -> None:
        for target, kind, source, system in hooks(runtime):
            if source != OURS:
                _log.info("%s: `%s` hook of %s, registered with %s", target, kind, source, system)

    runtime.hooks.add(version.attention_made, log, "before", source=OURS)
