"""What is hooked in a process, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from switchrail.hooks.hook import Hook
from switchrail.hooks.site import Site


@dataclass(frozen=True)
class Wanted:
    """Which hooks there are to be, and where."""

    sites: Mapping[Hook, tuple[Site, ...]]
    """Where each hook was put, in the order of addition; nowhere yet if its target isn't there."""
    disabled: frozenset[Hook]
    moved: Mapping[Site, Site]
    """From the methods of replaced classes to those that stand in their place, and carry their chains."""
    lost: Mapping[Site, Hook]
    """The methods of replaced classes that have none in their place, and what replaces the class."""
    hooks: Mapping[Site, tuple[Hook, ...]]
    """The hooks of each place, in the order of addition, which decides between equals."""


@dataclass(frozen=True)
class Chain:
    """What runs at one place."""

    own: Any
    """What stood there before the first hook, put back with the last."""
    installed: Any
    """What stands there, unless somebody else has swapped it."""
    running: tuple[Hook, ...]
    """The hooks that are not disabled, in their running order."""


@dataclass(frozen=True)
class Table(Wanted):
    """All hooks of this process."""

    chains: Mapping[Site, Chain]
