"""Logs warnings about a change: for example, of hooks that never run and of calls that bypass hooks."""

from __future__ import annotations

import logging
from typing import Final

from switchrail.hooks import bypass
from switchrail.hooks.table import Table

_log: Final = logging.getLogger(__name__)


def report(before: Table, after: Table) -> None:
    """Logs warnings about the change from the table `before` to the table `after`."""
    replacing = {*after.moved.values()}
    for site, chain in after.chains.items():
        replaces = [hook for hook in chain.running if hook.kind == "replace"]
        known = before.chains[site].running if site in before.chains else ()
        if site in replacing and replaces and replaces[0] not in known:
            _log.warning("%r replaces a method of a class that has been replaced: %s", replaces[0], site.name)
        for hook in replaces[1:]:
            if not {hook, replaces[0]} <= {*known}:
                _log.warning("%r never runs: %r replaces the target first", hook, replaces[0])
    for hook, sites in after.sites.items():
        for site in sites:
            by, is_new = after.lost.get(site), site not in before.sites.get(hook, ())
            if by is not None and (is_new or site not in before.lost):
                _log.warning("%r never runs: %r has no function of this name", hook, by)
            if is_new:
                for note in bypass.nearby(site):
                    _log.warning("%r: %s", hook, note)
