"""Readable explanations of the hooks on each target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from switchrail.errors import HookError
from switchrail.hooks import bypass, chain, waiting
from switchrail.hooks.hook import Hook
from switchrail.hooks.lock import change_lock
from switchrail.hooks.site import Function, Site
from switchrail.hooks.standin import Replaced
from switchrail.hooks.table import Chain, Table
from switchrail.hooks.target import Awaited, resolve

State = Literal["runs", "disabled", "ignored", "waiting"]

_RUN: Final = ("before", "around", "replace", "after")


@dataclass(frozen=True)
class Step:
    """One hook of a target.

    Attributes:
        hook: The hook.
        state: `runs`, `disabled`, `ignored` (such as a second `replace` hook), or `waiting` for its
            target.
        reason: Why the hook is ignored or waits; None in other states.
    """

    hook: Hook
    state: State
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The step as JSON values."""
        hook = self.hook
        return {
            "kind": hook.kind,
            "hook": hook.name,
            "distribution": hook.source,
            "version": hook.version,
            "plugin": hook.plugin,
            "priority": hook.priority,
            "before": list(hook.before),
            "after": list(hook.after),
            "state": self.state,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Explanation:
    """The hooks of one target.

    Attributes:
        target: The target's module and qualified name, or the dotted path that was given.
        steps: The hooks that run, in the order of a call; then the hooks that don't run.
        site: The target's `Site`; None if the hooks wait for the target.
    """

    target: str
    steps: tuple[Step, ...]
    site: Site | None

    def bypassed(self) -> tuple[str, ...]:
        """Descriptions of calls that bypass the hooks. This examines every object of the process."""
        return () if self.site is None else bypass.everywhere(self.site)

    def to_dict(self) -> dict[str, Any]:
        """The explanation as JSON values, with `bypassed`."""
        return {
            "target": self.target,
            "hooks": [step.to_dict() for step in self.steps],
            "bypassed": list(self.bypassed()),
        }


def of(target: object) -> Explanation:
    """Explains a target's hooks, and the hooks that wait for the target.

    Raises:
        HookError: The target doesn't exist and no hook waits for it, or the target can't be hooked.
    """
    reasons = waiting.retry()
    found: Site | Awaited | None = None
    problem = None
    try:
        found = resolve(target)
    except HookError as error:
        problem = error
    path = target if isinstance(target, str) else ""
    with change_lock:  # so that the table matches the code of the functions
        table = chain.table()
        # Another thread may have just found the target of a hook with this path.
        put = (sites[-1] for hook, sites in table.sites.items() if hook.path == path and sites)
        site = next(put, None) if found is None or isinstance(found, Awaited) else found
        explained = Explanation(path, (), None) if site is None else _explained(table, site)
    hooks = [hook for hook, sites in table.sites.items() if hook.path == path and not sites]
    if problem is not None and not hooks and site is None:
        raise problem
    return replace(explained, steps=explained.steps + _waiting(table, hooks, reasons))


def everything() -> tuple[Explanation, ...]:
    """Explains all hooks, sorted by target."""
    reasons = waiting.retry()
    with change_lock:
        table = chain.table()
        found = [_explained(table, site) for site in table.chains]
    absent: dict[str, list[Hook]] = {}
    for hook, sites in table.sites.items():
        if not sites:
            absent.setdefault(hook.target_name, []).append(hook)
    found += [Explanation(target, _waiting(table, hooks, reasons), None) for target, hooks in absent.items()]
    # Importing a module again leaves old functions with the same names and the same hooks.
    once = {(each.target, each.steps): each for each in found}
    return tuple(sorted(once.values(), key=lambda each: each.target))


def _waiting(
    table: Table, hooks: list[Hook], reasons: Mapping[Hook, Awaited | Exception]
) -> tuple[Step, ...]:
    return (
        *(Step(hook, "waiting", _reason(reasons.get(hook))) for hook in hooks if hook not in table.disabled),
        *(Step(hook, "disabled") for hook in hooks if hook in table.disabled),
    )


def _reason(why: Awaited | Exception | None) -> str:
    if why is None:  # another thread has added the hook since `retry`
        return "its target has not been looked for yet"
    return why.reason if isinstance(why, Awaited) else str(why)


def _explained(table: Table, site: Site) -> Explanation:
    site = table.moved.get(site, site)
    found = table.chains.get(site)
    if found is None:
        return Explanation(site.name, (), site)
    # A stand-in's object may be named after its class, like other objects of the class; paths are unique.
    if isinstance(site, Function) and isinstance(site.placement, Replaced):
        target = min(hook.target_name for hook in table.hooks[site])
    else:  # a method of a replacing class is shown under the name of the method that it replaces
        target = next((old.name for old, new in table.moved.items() if new == site), site.name)
    return Explanation(target, (*_steps(table, site, found),), site)


def _steps(table: Table, site: Site, found: Chain) -> Iterator[Step]:
    by = table.lost.get(site)
    swapped = site.found() is not found.installed
    ignored = []
    running = {kind: [hook for hook in found.running if hook.kind == kind] for kind in _RUN}
    for hook in (hook for kind in _RUN for hook in running[kind][:: -1 if kind == "after" else 1]):
        if by is not None:
            why = f"{by.name} replaces the class, and the new class has no such function"
            ignored.append(Step(hook, "ignored", why))
        elif swapped:
            ignored.append(Step(hook, "ignored", "other code has changed the target's code"))
        elif hook.kind == "replace" and hook is not running["replace"][0]:
            ignored.append(Step(hook, "ignored", f"{running['replace'][0].name} replaces the target first"))
        else:
            yield Step(hook, "runs")
    yield from ignored
    yield from (Step(hook, "disabled") for hook in table.hooks[site] if hook in table.disabled)
