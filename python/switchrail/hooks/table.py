"""All hooks of a process as one immutable value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from switchrail.hooks.hook import Hook
from switchrail.hooks.site import Site


@dataclass(frozen=True)
class Wanted:
    """The hooks of a process and their places."""

    sites: Mapping[Hook, tuple[Site, ...]]
    """The places that each hook was put on, in the order of addition; none if it waits for its target."""
    disabled: frozenset[Hook]
    moved: Mapping[Site, Site]
    """From methods of replaced classes to the methods in their place, which carry their hooks."""
    lost: Mapping[Site, Hook]
    """From methods of replaced classes without one in their place to the hook that replaces the class."""
    hooks: Mapping[Site, tuple[Hook, ...]]
    """The hooks that stand on each place, after moves, in the order of addition."""


@dataclass(frozen=True)
class Chain:
    """The hooks that run on one place."""

    own: Any
    """The place's state without hooks."""
    installed: Any
    """The state that carries the hooks. If the place has another, somebody else has changed it."""
    running: tuple[Hook, ...]
    """The enabled hooks in their running order."""


@dataclass(frozen=True)
class Table(Wanted):
    """The same with the chains that carry them."""

    chains: Mapping[Site, Chain]
