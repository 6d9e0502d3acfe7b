"""The table of this process's hooks, and its changes.

Code belongs to its process, not to a runtime, so one table serves all runtimes. A change has three steps.
`_wanted` determines the hooks of each site. `_difference` compares them with the table, and compiles
trampolines for the sites whose chain changes. `_apply` installs these trampolines.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from switchrail.errors import HookError
from switchrail.hooks.hook import Hook, ordered
from switchrail.hooks.lock import change_lock, warnings
from switchrail.hooks.report import report
from switchrail.hooks.site import Site
from switchrail.hooks.table import Chain, Table, Wanted

_log: Final = logging.getLogger(__name__)

# A finalizer can run during a change, in the same thread, and may remove hooks.
_changing = False
_removed_meanwhile: Final[list[Hook]] = []

# Replaced as a whole, never modified, so that readers need no lock.
_table = Table({}, frozenset(), {}, {}, {}, {})


def table() -> Table:
    """The current table; waits for a change in progress."""
    with change_lock:
        return _table


def is_within_change() -> bool:
    """Whether this thread is within a change, for example in a finalizer."""
    with change_lock:
        return _changing


def running(site: Site | None = None) -> tuple[Hook, ...]:
    """The enabled hooks of a site in their running order; without a site, those of all sites."""
    table = _table
    chains = table.chains
    if site is not None:
        site = table.moved.get(site, site)
        return chains[site].running if site in chains else ()
    return tuple(dict.fromkeys(hook for chain in chains.values() for hook in chain.running))


def added() -> Mapping[Hook, tuple[Site, ...]]:
    """All hooks in the order of addition, including disabled and waiting ones, with their sites."""
    return _table.sites


def version() -> Table:
    """The current table, without waiting for a change in progress; the same object until the next change."""
    return _table


def is_enabled(hook: Hook) -> bool:
    """Whether a hook is enabled."""
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
    """Changes the table: makes the whole change, or none of it.

    Every call of a target runs either the whole old chain or the whole new chain.

    Args:
        add: New hooks, with their sites.
        remove: Hooks to remove; unknown ones are ignored.
        attach: A further site for each of these hooks; hooks that were removed meanwhile are ignored.
        disable: Hooks to disable; they keep their positions in the order.
        enable: Hooks to enable again.
        strict: Whether a second `replace` on one site is an error; otherwise it is logged.

    Raises:
        HookError: A hook is already on its target, doesn't fit the target, or is a second `replace` hook and
            `strict` is True; other code has changed a hooked function's code; or a finalizer that runs during
            another change does more than remove hooks.
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
                raise HookError("within another change of hooks, hooks can only be removed")
            _changing = True
            try:
                before = _table
                try:
                    sites = _requested(before.sites, add or {}, remove, attach or {})
                    _change_to(sites, (before.disabled | {*disable}) - {*enable}, strict=strict)
                finally:
                    _remove_meanwhile()
            finally:
                _changing = False
                told = [*warnings]
                warnings.clear()
            after = _table
    finally:
        for message in told:
            _log.warning("%s", message)
    report(before, after)


# A separate function, since from CPython 3.13 on, an interrupt at the end of a loop may skip a `finally`
# of the same function.
def _requested(
    before: Mapping[Hook, tuple[Site, ...]],
    add: Mapping[Hook, Sequence[Site]],
    remove: Sequence[Hook],
    attach: Mapping[Hook, Site],
) -> Mapping[Hook, tuple[Site, ...]]:
    """All hooks after the change, with their sites."""
    sites = dict(before)
    for hook, own in add.items():
        if hook in sites:
            raise HookError(f"{hook!r} was already added", target=hook.target_name)
        sites[hook] = tuple(own)
    for hook, site in attach.items():
        if hook in sites and site not in sites[hook]:
            sites[hook] = (*sites[hook], site)
    for hook in remove:
        sites.pop(hook, None)
    return sites


def _remove_meanwhile() -> None:
    """Removes the hooks that finalizers removed during the change."""
    while _removed_meanwhile:
        gone = _removed_meanwhile.pop()
        _change_to({hook: sites for hook, sites in _table.sites.items() if hook is not gone}, _table.disabled)


def _change_to(
    sites: Mapping[Hook, tuple[Site, ...]], disabled: frozenset[Hook], *, strict: bool = False
) -> None:
    """Makes the change that `change` describes, in three steps."""
    wanted = _wanted(sites, disabled & sites.keys())
    chains, swaps = _difference(_table, wanted, strict=strict)
    _apply(Table(**vars(wanted), chains=chains), swaps)


def _wanted(sites: Mapping[Hook, tuple[Site, ...]], disabled: frozenset[Hook]) -> Wanted:
    """Step 1: the hooks of each site after the change."""
    moved: dict[Site, Site] = {}
    lost: dict[Site, Hook] = {}
    put = _by_site(sites, {})
    for site, hooks in put.items():
        enabled = [hook for hook in hooks if hook not in disabled]
        if not (site.moves_hooks and enabled):
            continue
        first = ordered(enabled)[0]
        for old, new in site.moves(first, put):
            if new is None:
                lost[old] = first
            else:
                moved[old] = new
    return Wanted(sites, disabled, moved, lost, _by_site(sites, moved))


def _by_site(
    sites: Mapping[Hook, tuple[Site, ...]], moved: Mapping[Site, Site]
) -> Mapping[Site, tuple[Hook, ...]]:
    hooks: dict[Site, tuple[Hook, ...]] = {}
    for hook, own in sites.items():
        for site in dict.fromkeys(moved.get(site, site) for site in own):
            hooks[site] = (*hooks.get(site, ()), hook)
    return hooks


@dataclass(frozen=True)
class Swap:
    """The change of one site's state."""

    site: Site
    old: Chain
    new: Chain

    @property
    def turn(self) -> int:
        """When the swap is done: first at functions that will have hooks, last at functions that won't.

        Classes are replaced in between, because replacing a class moves hooks to functions.
        """
        return 1 if self.site.moves_hooks else 0 if self.new.running else 2

    def do(self) -> None:
        """Installs the new chain."""
        self.site.install(self.new.installed, hooked=bool(self.new.running))

    def undo(self) -> None:
        """Installs the old chain again, unless other code has meanwhile replaced the new one."""
        if self.site.found() is self.new.installed:
            self.site.install(self.old.installed, hooked=bool(self.old.running))


def _difference(
    before: Table, wanted: Wanted, *, strict: bool
) -> tuple[Mapping[Site, Chain], Sequence[Swap]]:
    """Step 2: all chains after the change, and the swaps that install them. Refuses hooks that don't fit."""
    _refuse_cycles_of_waiting(before, wanted)
    chains = dict(before.chains)
    swaps = []
    # Classes come first, since replacing a class changes its methods' own code.
    for site in sorted(dict.fromkeys([*before.chains, *wanted.hooks]), key=lambda site: not site.moves_hooks):
        found = site.found()
        old = before.chains.get(site) or Chain(found, found, ())
        new = _chain(site, old, before, wanted, strict=strict)
        if new is old:
            continue
        chains.pop(site, None)
        if site in wanted.hooks:
            chains[site] = new
        if new.installed is not old.installed:
            swaps.append(Swap(site, old, new))
    return chains, sorted(swaps, key=lambda swap: swap.turn)


def _chain(site: Site, old: Chain, before: Table, wanted: Wanted, *, strict: bool) -> Chain:
    """The next chain of a site; `old` itself if it does not change."""
    known, hooks = before.hooks.get(site, ()), wanted.hooks.get(site, ())
    enabled = [hook for hook in hooks if hook not in wanted.disabled]
    own = site.own(old.own)
    if own is old.own and hooks == known and {*enabled} == {*old.running}:
        return old
    is_swapped = site.found() is not old.installed
    for i, hook in enumerate(hooks):
        if hook not in known:
            if is_swapped:
                raise hook.refusal("other code has changed the target's code since it was hooked")
            if any(map(hook.repeats, hooks[:i])):
                raise hook.refusal("the target already has this hook")
            site.check(hook, wanted.hooks)
    running = ordered(enabled)
    if strict:
        _refuse_second_replace(site, running, old.running)
    installed = old.installed
    if is_swapped:
        warnings.append(f"{site.name} keeps its code, which other code has changed since it was hooked")
    elif own is not old.own or running != old.running:
        installed = site.made(own, running) if running else own
    return Chain(own, installed, running)


def _refuse_second_replace(site: Site, running: Sequence[Hook], known: Sequence[Hook]) -> None:
    replaces = [hook for hook in running if hook.kind == "replace"]
    if len(replaces) > 1 and not {*replaces} <= {*known}:
        raise HookError(
            f"{site.name} is replaced more than once: by {', '.join(map(repr, replaces))}; "
            "valid in strict mode: one replace hook",
            target=site.name,
        )


def _refuse_cycles_of_waiting(before: Table, wanted: Wanted) -> None:
    """Refuses waiting hooks whose constraints form a cycle, even though their target doesn't exist yet."""
    waiting: dict[str, list[Hook]] = {}
    for hook, sites in wanted.sites.items():
        if not sites and hook not in wanted.disabled:
            waiting.setdefault(hook.target_name, []).append(hook)
    for hooks in waiting.values():
        if not before.sites.keys() >= {*hooks}:
            ordered(hooks)


def _apply(table: Table, swaps: Sequence[Swap]) -> None:
    """Step 3: publishes the table, then swaps. If one swap fails, undoes the whole change."""
    global _table
    before, done = _table, []
    _table = table
    try:
        for swap in swaps:
            done.append(swap)
            swap.do()
    except BaseException:  # from an audit hook that refuses a swap, or a signal between two swaps
        for swap in reversed(done):
            swap.undo()
        _table = before
        raise
