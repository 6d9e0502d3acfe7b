"""What is hooked in a process, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from switchrail.hooks.hook import Hook
from switchrail.hooks.site import Site


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
    """Where each hook was put, in the order of addition; nowhere yet if its target isn't there."""
    disabled: frozenset[Hook]
    moved: Mapping[Site, Site]
    """From the methods of replaced classes to those that stand in their place, and carry their chains."""
    lost: Mapping[Site, Hook]
    """The methods of replaced classes that have none in their place, and what replaces the class."""
    chains: Mapping[Site, Chain]
