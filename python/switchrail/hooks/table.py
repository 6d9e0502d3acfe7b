"""All hooks of a process as an immutable value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from switchrail.hooks.hook import Hook
from switchrail.hooks.site import Site


@dataclass(frozen=True)
class Wanted:
    """The hooks of a process, and their sites."""

    sites: Mapping[Hook, tuple[Site, ...]]
    """The hooks in the order of addition, each with its sites; none if the hook waits for its target."""
    disabled: frozenset[Hook]
    moved: Mapping[Site, Site]
    """For methods of replaced classes: the new class's method of the same name, which gets the hooks."""
    lost: Mapping[Site, Hook]
    """For methods of replaced classes without such a counterpart: the hook that replaces the class."""
    hooks: Mapping[Site, tuple[Hook, ...]]
    """The hooks of each site after moves, in the order of addition."""


@dataclass(frozen=True)
class Chain:
    """The enabled hooks on one site, and the site's state with and without hooks."""

    own: Any
    """The site's state without the hooks."""
    installed: Any
    """The state with the hooks. If the site's state is another object, other code has changed the site."""
    running: tuple[Hook, ...]
    """The enabled hooks in their running order."""


@dataclass(frozen=True)
class Table(Wanted):
    """The hooks and their sites, with the chains of the sites."""

    chains: Mapping[Site, Chain]
