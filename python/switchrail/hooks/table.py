"""All hooks of a process as an immutable value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from switchrail.hooks.hook import Hook
from switchrail.hooks.site import Site


@dataclass(frozen=True)
class Wanted:
    """The hooks of a process and their sites."""

    sites: Mapping[Hook, tuple[Site, ...]]
    """The sites of each hook in the order of addition; none if it waits for its target."""
    disabled: frozenset[Hook]
    moved: Mapping[Site, Site]
    """From methods of replaced classes to the methods that replace them and get their hooks."""
    lost: Mapping[Site, Hook]
    """From methods of replaced classes that no method replaces to the hook that replaces the class."""
    hooks: Mapping[Site, tuple[Hook, ...]]
    """The hooks that each site has after moves, in the order of addition."""


@dataclass(frozen=True)
class Chain:
    """The hooks that run on one site."""

    own: Any
    """The site's state without hooks."""
    installed: Any
    """The state with the hooks. If the site has another state, other code has changed it."""
    running: tuple[Hook, ...]
    """The enabled hooks in their running order."""


@dataclass(frozen=True)
class Table(Wanted):
    """Hooks and their sites, with the chains that run them."""

    chains: Mapping[Site, Chain]
