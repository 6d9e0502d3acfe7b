"""Checks that plugins load, and that the targets of their hooks exist."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator
from functools import partial

from switchrail.checks import shown
from switchrail.doctor.finding import Finding
from switchrail.errors import SwitchrailError
from switchrail.hooks.target import modules_of
from switchrail.plugins.place import placed_reason
from switchrail.runtime import Runtime
from switchrail.variables import ALLOW_LIST, TIMEOUT
from switchrail.waiting import patience, within

_ADVICE = {
    "failed": "ask its vendor, and send the traceback that `switchrail plugins --json` shows; until then "
    f"uninstall the plugin, or name only other plugins in {ALLOW_LIST}",
    "hung": f"give it more time with {TIMEOUT}, or name only other plugins in {ALLOW_LIST}; "
    "`switchrail plugins --json` shows where its thread is",
}


def check_plugins(runtime: Runtime, differing: Collection[str]) -> Iterator[Finding]:
    """Loads the plugins that may be loaded. Reports those that don't load, and hooks without a target.

    Args:
        runtime: The runtime to load into.
        differing: The distributions that differ from the lock; another check has reported them.
    """
    try:
        runtime.load()
    except SwitchrailError as error:
        yield Finding("plugins", "all", str(error), "correct this; until then no plugin is loaded")
        return
    for plugin in runtime.plugins:
        name = plugin.qualified_name
        if plugin.state in _ADVICE:
            yield Finding("plugins", name, f"{plugin.state}: {placed_reason(plugin)}", _ADVICE[plugin.state])
        elif plugin.state == "blocked" and not any(map(plugin.is_of, differing)):
            yield Finding(
                "plugins", name, f"not loaded: {plugin.reason}", "if this is intended, do nothing", False
            )
    yield from _hooks(runtime)


def _hooks(runtime: Runtime) -> Iterator[Finding]:
    for hook in runtime.hooks.waiting():
        problem = ""
        for module in modules_of(hook.path or ""):
            try:
                work = partial(importlib.import_module, module)
                within(patience(runtime._loader.seconds()), work, f"module {module}", "its import")
            except ModuleNotFoundError:
                break  # the remaining parts of the path are attributes, not modules
            except (Exception, SystemExit) as error:
                problem = f"importing {module} failed: {shown(error, None)}"
                break
        if hook not in runtime.hooks.waiting():
            continue
        explained = runtime.hooks.explain(hook.target_name)
        problem = problem or next((step.reason for step in explained.steps if step.hook is hook), None) or ""
        yield Finding(
            "hooks",
            hook.target_name,
            f"{hook!r} is not in force: {problem}",
            f"{hook.source} may need another version of the target: install compatible versions",
        )
