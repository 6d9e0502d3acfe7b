"""Whether what a captured step ran is still what an eager one would run."""

from __future__ import annotations

from torch import nn
from torch.utils.hooks import RemovableHandle

from switchrail.engine.models.contract import ENGINE
from switchrail.engine.module_hooks import Numbered, hooks_of, hooks_of_all
from switchrail.hooks import chain
from switchrail.hooks.hook import Hook
from switchrail.hooks.site import Site
from switchrail.hooks.table import Table


class HookWatch:
    """Looks for hooks that were added or removed: Switchrail's on any function, and torch's on modules.

    A graph calls no hook when it is replayed; what a hook launched while it was captured is in it. So each
    change makes what was captured before out of date. A method that somebody else has replaced isn't noticed.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.look()

    def look(self) -> None:
        """Takes what there is now as what was captured."""
        version, count = chain.version(), RemovableHandle.next_id
        chains = _chains(version)
        hooked = self._find()
        keys = [tuple(hooks) for hooks in hooked]
        # as in `Sequences.admit`, no exception of a signal comes between these
        self._version, self._chains = version, chains
        self._count, self._hooked, self._keys = count, hooked, keys

    def has_changed(self) -> bool:
        """Whether anything is different from the last look."""
        count = RemovableHandle.next_id
        if count != self._count:  # torch was given a hook, perhaps for another model
            found = self._find()
            if len(found) != len(self._hooked):
                return True
            self._hooked, self._count = found, count
        version = chain.version()
        if version is not self._version:
            if _chains(version) != self._chains:
                return True
            self._version = version
        return [tuple(hooks) for hooks in self._hooked] != self._keys

    def _find(self) -> list[Numbered]:
        """The hooks of all modules, by numbers that torch gives out once."""
        own = [hooks for part in self._model.modules() for hooks in hooks_of(part) if hooks]
        return [*hooks_of_all(), *own]


def _chains(table: Table) -> dict[Site, tuple[Hook, ...]]:
    """The hooks that run on each place, but for those of engines, which leave others' models as they are."""
    return {
        site: others
        for site, one in table.chains.items()
        if (others := tuple(hook for hook in one.running if hook.source != ENGINE))
    }


__all__ = ["HookWatch"]
