"""Which places are hooked in this process, and the swaps that put a chain there.

A function's code belongs to the process, so this table does too, whatever number of runtimes add hooks to it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any, Final

from switchrail.errors import HookError
from switchrail.hooks import bypass
from switchrail.hooks.classes import Class, redirected
from switchrail.hooks.hook import Hook, ordered
from switchrail.hooks.lock import change_lock, warnings
from switchrail.hooks.moves import moves
from switchrail.hooks.site import Function, Site

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class Chain:
    """The hooks of one place."""

    own: Any
    """What stood there before the first hook, put back with the last."""
    installed: Any
    """What stands there, unless somebody else has swapped it."""
    hooks: tuple[Hook, ...]
    """In the order in which they were added, which decides between equals."""
    running: tuple[Hook, ...]
    """Those not disabled, in their running order."""


@dataclass(frozen=True)
class Table:
    """All hooks of this process."""

    sites: Mapping[Hook, tuple[Site, ...]]
    """Where each hook stands, in the order of addition; nowhere yet for one whose target isn't there."""
    disabled: frozenset[Hook]
    chains: Mapping[Site, Chain]
    moved: Mapping[Site, Site]
    """From the methods of replaced classes to those that stand in their place, and carry their chains."""
    lost: Mapping[Site, Hook]
    """The methods of replaced classes that have none in their place, and what replaces the class."""


# A finalizer can run inside a change, on the same thread, and may want to remove hooks of its own.
_changing = False
_removed_meanwhile: Final[list[Hook]] = []

# Replaced, never changed in place: readers take the reference and no lock.
_table = Table({}, frozenset(), {}, {}, {})


def table() -> Table:
    """The current table; waits for a change in progress."""
    with change_lock:
        return _table


def is_within_change() -> bool:
    """Whether this call comes from within a change of this thread, as from a finalizer."""
    with change_lock:
        return _changing


def running(site: Site | None = None) -> tuple[Hook, ...]:
    """The hooks that run at one place, or at all, in the order in which they run."""
    table = _table
    chains = table.chains
    if site is not None:
        site = table.moved.get(site, site)
        return chains[site].running if site in chains else ()
    return tuple(dict.fromkeys(hook for chain in chains.values() for hook in chain.running))


def added() -> Mapping[Hook, tuple[Site, ...]]:
    """All hooks in the order of their addition, disabled and waiting ones too, and where they stand."""
    return _table.sites


def is_enabled(hook: Hook) -> bool:
    """Whether a hook would run."""
    return hook not in _table.disabled


def change(
    *,
    add: Mapping[Hook, Sequence[Site]] | None = None,
    remove: Sequence[Hook] = (),
    attach: Mapping[Hook, Site] | None = None,
    disable: Iterable[Hook] = (),
    enable: Iterable[Hook] = (),
    strict: bool = False,
) -> None:
    """Changes which hooks there are, where they stand and which of them run: all of it, or nothing.

    Every call of a target runs the chain from before the change or the one from after it. All trampolines are
    compiled first, then the table is published, then each function's code is swapped by one assignment; where
    one fails, all are put back.

    Args:
        add: New hooks, and where they stand.
        remove: Hooks that go; those that aren't there are left out.
        attach: Further places of hooks; of those that have gone, nothing.
        disable: Hooks that stay, but don't run.
        enable: Hooks that run again.
        strict: Whether a second `replace` at one place is refused, not only reported.

    Raises:
        HookError: A target has a hook already, can't have it, or somebody else has swapped its code since it
            was hooked.
        OrderError: The hooks' constraints form a cycle.
    """
    global _changing
    told: Sequence[str] = ()
    try:
        with change_lock:
            if _changing:
                if remove and not add:
                    _removed_meanwhile.extend(remove)
                    return
                raise HookError("hooks can't be changed from within another change, but for removals")
            _changing = True
            try:
                before = _table
                try:
                    new = {**before.sites}
                    for hook, sites in (add or {}).items():
                        if hook in new:
                            raise HookError(f"{hook!r} is there already", target=hook.target_name)
                        new[hook] = tuple(sites)
                    for hook, site in (attach or {}).items():
                        if hook in new and site not in new[hook]:
                            new[hook] = (*new[hook], site)
                    for hook in remove:
                        new.pop(hook, None)
                    disabled = (before.disabled | {*disable}) - {*enable}
                    _change(new, disabled & new.keys(), strict=strict)
                finally:
                    while _removed_meanwhile:
                        gone = _removed_meanwhile.pop()
                        rest = {hook: sites for hook, sites in _table.sites.items() if hook is not gone}
                        _change(rest, _table.disabled - {gone})
            finally:
                _changing = False
                told = [*warnings]
                warnings.clear()
            after = _table
    finally:
        for message in told:
            _log.warning("%s", message)
    _report(before, after)


def _report(before: Table, after: Table) -> None:
    replacing = {*after.moved.values()}
    for site, chain in after.chains.items():
        replaces = [hook for hook in chain.running if hook.kind == "replace"]
        known = before.chains[site].running if site in before.chains else ()
        if site in replacing and replaces and replaces[0] not in known:
            _log.warning("%r replaces a method of a class that has been replaced: %s", replaces[0], site.name)
        for hook in replaces[1:]:
            if not {hook, replaces[0]} <= {*known}:
                _log.warning("%r never runs: %r stands before it", hook, replaces[0])
    for hook, sites in after.sites.items():
        for site in sites:
            by, new = after.lost.get(site), site not in before.sites.get(hook, ())
            if by is not None and (new or site not in before.lost):
                _log.warning("%r never runs: %r has no function of this name", hook, by)
            if new:
                for note in bypass.nearby(site):
                    _log.warning("%r: %s", hook, note)


def _change(
    sites: Mapping[Hook, tuple[Site, ...]], disabled: frozenset[Hook], *, strict: bool = False
) -> None:
    global _table
    before = _table
    moved, lost = moves(sites, disabled)
    waiting: dict[str, list[Hook]] = {}
    for hook, places in sites.items():
        if not places and hook not in disabled:
            waiting.setdefault(hook.target_name, []).append(hook)
    for hooks in waiting.values():
        if not all(hook in before.sites for hook in hooks):
            ordered(hooks)  # no order now is none later
    wanted: dict[Site, list[Hook]] = {}
    for hook, places in sites.items():
        for site in dict.fromkeys(moved.get(site, site) for site in places):
            wanted.setdefault(site, []).append(hook)
    chains = dict(before.chains)
    swaps: list[tuple[Site, Any, bool, Any, bool]] = []
    # Classes come first: what is made of the code of their methods has to be there when these are hooked.
    for site in sorted(dict.fromkeys([*before.chains, *wanted]), key=lambda site: type(site) is not Class):
        hooks = wanted.get(site, [])
        chain = before.chains.get(site)
        enabled = [hook for hook in hooks if hook not in disabled]
        own: Any = chain.own if chain else site.found()
        if isinstance(site, Function):
            own = redirected(site.function, own)
        same = chain is not None and own is chain.own
        if chain and same and (*hooks,) == chain.hooks and {*enabled} == {*chain.running}:
            continue
        found = site.found()
        chain = chain or Chain(found, found, (), ())
        swapped = found is not chain.installed
        for i, hook in enumerate(hooks):
            if hook not in chain.hooks:
                _refuse_unfit(hook, site, hooks[:i], swapped=swapped)
                if isinstance(site, Class):
                    _refuse_linked(hook, site, wanted)
        order = ordered(enabled)
        if strict:
            _refuse_second_replace(site, order, chain.running)
        if swapped:
            installed = chain.installed
            warnings.append(f"{site.name} keeps its code: it was swapped since it was hooked")
        elif same and order == chain.running:
            installed = chain.installed
        else:
            installed = site.made(own, order) if order else own
            swaps.append((site, found, bool(chain.running), installed, bool(order)))
        chains.pop(site, None)
        if hooks:
            chains[site] = Chain(own, installed, tuple(hooks), order)
    # What takes hooks over comes before the classes, which lead calls there; what gives them up, after.
    swaps.sort(key=lambda swap: 1 if isinstance(swap[0], Class) else 0 if swap[4] else 2)
    _table = Table(sites, disabled, chains, moved, lost)
    done: list[tuple[Site, Any, bool, Any, bool]] = []
    try:
        for swap in swaps:
            site, _, _, new, hooked = swap
            done.append(swap)
            site.install(new, hooked=hooked)
    except BaseException:  # an audit hook may refuse, a signal may come between
        for site, old, was_hooked, new, _ in reversed(done):
            if site.found() is new:
                site.install(old, hooked=was_hooked)
        _table = before
        raise


def _refuse_unfit(hook: Hook, site: Site, hooks: Sequence[Hook], *, swapped: bool) -> None:
    if swapped:
        problem: str | None = "somebody else has swapped the target's code since it was hooked"
    elif any(other.owner is hook.owner and other.kind == hook.kind and _same(other, hook) for other in hooks):
        problem = "the target has it already"
    else:
        problem = site.problem_of(hook)
    if problem is not None:
        raise hook.refusal(problem)


def _refuse_linked(hook: Hook, site: Class, wanted: Mapping[Site, Sequence[Hook]]) -> None:
    """Refuses a class that is replaced itself, or replaces two: its methods would carry the hooks of both."""
    for place, others in wanted.items():
        if not isinstance(place, Class) or hook in others:  # there too, if its module was imported again
            continue
        for other in others:
            if other.fn is hook.fn:
                raise hook.refusal(f"the class replaces {place.name} already; valid: a class for each")
            if other.fn is site.cls:
                raise hook.refusal(f"the target replaces {place.name}; valid: to replace {place.name}")
            if place.cls is hook.fn:
                raise hook.refusal(f"the class is replaced itself, by {other.name}; valid: {other.name}")


def _same(one: Hook, other: Hook) -> bool:
    a, b = one.fn, other.fn
    if isinstance(a, MethodType) and isinstance(b, MethodType):  # made anew by each look at the attribute
        return a.__self__ is b.__self__ and a.__func__ is b.__func__
    return a is b


def _refuse_second_replace(site: Site, ordered: Sequence[Hook], known: Sequence[Hook]) -> None:
    replaces = [hook for hook in ordered if hook.kind == "replace"]
    if len(replaces) > 1 and not {*replaces} <= {*known}:
        raise HookError(
            f"{site.name} is replaced more than once: by {', '.join(repr(hook) for hook in replaces)}; "
            "valid in strict mode: one replace hook",
            target=site.name,
        )
