"""Detects whether a captured step still runs the hooks that an eager step would run."""

from __future__ import annotations

from typing import Final

from torch import nn

from switchrail.engine.module_hooks import Numbered, hooks_of, hooks_of_all, is_adding, numbers_given
from switchrail.hooks import chain
from switchrail.hooks.hook import Hook
from switchrail.hooks.site import Site
from switchrail.hooks.table import Table

ENGINE: Final = "switchrail"
"""The `source` of hooks that engines add."""


class HookWatch:
    """Detects added and removed hooks: Switchrail's hooks on any function, and torch's forward hooks.

    A replayed graph calls no hooks; it contains the launches that hooks made during the capture. So any
    change of hooks invalidates earlier captures. Methods that were replaced by assignment are not detected.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.look()

    def look(self) -> None:
        """Record the current hooks, before captures. Waits until a change of Switchrail's hooks is complete.

        During such a change, the table has hooks that calls don't run yet.
        """
        version = chain.table()
        chains = _chains(version)
        count, hooked = self._find()
        keys = [tuple(hooks) for hooks in hooked]
        total = sum(map(len, keys))
        # as in `Sequences.admit`, no signal handler can raise between these statements
        self._version, self._chains = version, chains
        self._count, self._hooked, self._keys, self._total = count, hooked, keys, total

    def has_changed(self) -> bool:
        """Whether hooks have changed since they were recorded."""
        if numbers_given() != self._count:  # torch has a new hook, but perhaps on another model
            count, found = self._find()
            if [tuple(hooks) for hooks in found] != self._keys:
                return True
            self._hooked, self._count = found, count
        version = chain.version()
        if version is not self._version:
            if _chains(version) != self._chains:
                return True
            self._version = version
        return sum(map(len, self._hooked)) != self._total  # without a new hook, only removals are possible

    def _find(self) -> tuple[int | None, list[Numbered]]:
        """Find the torch hooks that the model's modules run.

        Returns:
            How many numbers torch has given, or None if a numbered hook may be missing; and the mappings from
            numbers to hooks.
        """
        count: int | None = numbers_given()
        if is_adding():
            count = None
        own = [hooks for part in self._model.modules() for hooks in hooks_of(part) if hooks]
        return count, [*hooks_of_all(), *own]


def _chains(table: Table) -> dict[Site, tuple[Hook, ...]]:
    """The hooks on each site, except the engines' own, which don't affect other models."""
    return {
        site: others
        for site, one in table.chains.items()
        if (others := tuple(hook for hook in one.running if hook.source != ENGINE))
    }
