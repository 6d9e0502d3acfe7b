"""Describes the differences between two runtimes in words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any

from switchrail.plugins import GROUP
from switchrail.processes.state import BackendState, HookState, PlanState, State

_Things = dict[str, Mapping[str, Any]]


def differences(found: State, expected: State) -> tuple[str, ...]:
    """Every difference between two runtimes; folders of installed plugins are not compared."""
    lines = [*_compared(dict(_things(found)), dict(_things(expected)))]
    lines += _compared_orders(dict(_orders(found)), dict(_orders(expected)))
    if not lines and found.fingerprint != expected.fingerprint:
        lines.append(f"fingerprint: it is {found.fingerprint}, not {expected.fingerprint}")
    reasons = {f"plugin {plugin.qualified_name}": plugin.reason for plugin in found.plugins}
    return tuple(
        f"{line} ({reason})" if (reason := reasons.get(line.split(": state is ")[0])) else line
        for line in lines
    )


def digest(state: State) -> str:
    """A digest that is equal for two states without differences."""
    things = [dict(_things(state)), dict(_orders(state)), state.fingerprint]
    return sha256(json.dumps(things, sort_keys=True).encode()).hexdigest()


def _compared(ours: _Things, theirs: _Things) -> Iterator[str]:
    for name in dict.fromkeys([*theirs, *ours]):
        if name not in ours:
            yield f"{name}: it is missing"
        elif name not in theirs:
            yield f"{name}: it is unexpected"
        else:
            mine, other = ours[name], theirs[name]
            for field in dict.fromkeys([*other, *mine]):
                if mine.get(field) != other.get(field):
                    yield f"{name}: {field} is {mine.get(field)!r}, not {other.get(field)!r}"


def _compared_orders(ours: Mapping[str, list[str]], theirs: Mapping[str, list[str]]) -> Iterator[str]:
    for name in ours.keys() & theirs.keys():
        mine = [member for member in ours[name] if member in theirs[name]]
        other = [member for member in theirs[name] if member in ours[name]]
        if mine != other:
            yield f"order of {name}: it is {', '.join(mine)}, not {', '.join(other)}"


def _things(state: State) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All compared items: each item's unique name and its properties."""
    yield "switchrail", {"version": state.version}
    yield "platform", {"choice": state.platform}
    yield "hooks", {"strictness": state.strict_hooks}
    for plugin in state.plugins:
        group = "" if plugin.group == GROUP else "platform "
        yield (
            f"{group}plugin {plugin.qualified_name}",
            {"version": plugin.version, "target": plugin.target, "state": plugin.state},
        )
    for name, version in state.packages.items():
        yield f"package {name}", {"version": version}
    yield from _told_apart(
        (f"{backend.registration.op} backend {backend.registration.name!r}", _backend(backend))
        for backend in reversed(state.backends)
    )
    yield from _told_apart(
        (f"{hook.kind} hook {hook.name} of {hook.source!r} on {hook.target}", _hook(hook))
        for hook in state.hooks
    )
    for number, plan in enumerate(state.plans, start=1):
        yield f"plan {number}", _plan(plan)


def _orders(state: State) -> Iterator[tuple[str, list[str]]]:
    yield "plugins", [plugin.qualified_name for plugin in state.plugins if plugin.state == "loaded"]
    for target, hooks in state.chains:
        yield f"hooks on {target}", list(hooks)


def _told_apart(things: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    seen: dict[str, int] = {}
    for name, properties in things:
        seen[name] = seen.get(name, 0) + 1
        yield name if seen[name] == 1 else f"{name}, number {seen[name]}", properties


def _backend(backend: BackendState) -> Mapping[str, Any]:
    document = backend.registration.to_dict()
    origin, spec = document["origin"], document["spec"]
    # the plugin's version is in its own entry
    owner = [value for key, value in origin.items() if key != "version"]
    return {
        "origin": " ".join(owner),
        "path": spec["path"],
        "phases": spec["phases"],
        "priority": spec["priority"],
        **spec["capabilities"],
        **{f"default of {name}": value for name, value in spec["config"].items()},
        **{f"configured {name}": value for name, value in document["configuration"].items()},
    }


def _hook(hook: HookState) -> Mapping[str, Any]:
    return {
        "plugin": hook.plugin,
        "version": hook.version if hook.plugin is None else None,  # a plugin's version is in its own entry
        "priority": hook.priority,
        "before": hook.before,
        "after": hook.after,
        "strictness": hook.strict,
        "state": "enabled" if hook.is_enabled else "disabled",
    }


def _plan(plan: PlanState) -> Mapping[str, Any]:
    routes: dict[str, dict[str, list[int]]] = {}
    for layer, op, phase, backend in plan.routes:
        routes.setdefault(f"{op} {phase} by layers", {}).setdefault(backend, []).append(layer)
    kinds = [layer.kind for layer in plan.layout.layers]
    return {"layers": kinds, **plan.request, **routes, "fingerprint": plan.fingerprint}
