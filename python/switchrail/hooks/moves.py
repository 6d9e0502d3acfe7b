"""Where the hooks on methods of replaced classes go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from switchrail.hooks.classes import Class, function_of, namespace_of, pairs
from switchrail.hooks.hook import Hook, ordered
from switchrail.hooks.inherited import Attribute
from switchrail.hooks.site import Function, Site


def moves(
    sites: Mapping[Hook, tuple[Site, ...]], disabled: frozenset[Hook]
) -> tuple[dict[Site, Site], dict[Site, Hook]]:
    """From methods of replaced classes to those in their place; and from those that have none to the hook."""
    replacing: dict[type, list[Hook]] = {}
    for hook, places in sites.items():
        for site in places:
            if isinstance(site, Class) and hook not in disabled:
                replacing.setdefault(site.cls, []).append(hook)
    moved: dict[Site, Site] = {}
    lost: dict[Site, Hook] = {}
    by = {cls: ordered(hooks)[0] for cls, hooks in replacing.items()}
    for cls, hook in by.items():
        for old, new in pairs(cls, hook.fn):
            if new is None:
                lost[Function(old)] = hook
            else:
                moved[Function(old)] = Function(new)
    for site in {site for places in sites.values() for site in places if isinstance(site, Function)}:
        at = site.placement  # of a function for what a class inherits; its replacement may have its own
        if isinstance(at, Attribute) and at.owner in by:
            replacing_class: Any = by[at.owner].fn
            function = function_of(namespace_of(replacing_class).get(at.name))
            if function is not None:
                moved[site] = Function(function)
    return moved, lost
