"""Puts waiting hooks on targets: after imports, and when hooks are added, enabled, listed or explained.

The imports alone do not suffice: `switchrail.hooks.imports` notices neither modules that are loaded from a
file path or put into `sys.modules` by hand, nor attributes that a module gets after its import.
"""

from __future__ import annotations

import logging
import sys
import weakref
from importlib.machinery import ModuleSpec
from typing import Final

from switchrail.checks import shown
from switchrail.errors import HookError, OrderError
from switchrail.hooks import chain
from switchrail.hooks.hook import Hook
from switchrail.hooks.target import Awaited, MissingTargetError, modules_of, resolve

_log: Final = logging.getLogger(__name__)

# Why each hook had to wait when it was last tried.
_last: Final[weakref.WeakKeyDictionary[Hook, Awaited | HookError | OrderError]] = weakref.WeakKeyDictionary()


def retry() -> dict[Hook, Awaited | HookError | OrderError]:
    """Puts waiting hooks on targets that exist now. Returns why the others still wait.

    Does nothing if called within a change, by a finalizer.
    """
    if chain.is_within_change():
        return {}
    return {
        hook: why
        for hook, sites in chain.added().items()
        if not sites and (why := _still_waits(hook) or attach(hook)) is not None
    }


def attach(hook: Hook, *, done: str | None = None) -> Awaited | HookError | OrderError | None:
    """Puts a hook on its target, if the target exists now. Logs new problems other than a missing target.

    Args:
        hook: A waiting hook, or one whose module was imported again.
        done: See `resolve`. A target that is missing from this module is logged, too.

    Returns:
        Why the hook still waits; None if it does not.
    """
    why: Awaited | HookError | OrderError
    try:
        site = resolve(hook.path, done=done)
        if isinstance(site, Awaited):
            if site.is_being_imported and _has_ended(site.module):
                return attach(hook, done=done)
            why = site
        else:
            site.check(hook)
            chain.change(attach={hook: site}, strict=hook.strict)
            return None
    except (HookError, OrderError) as error:
        why = error
    except Exception as error:  # raised by the code of a module or metaclass
        why = HookError(f"{hook!r}: {shown(error, None)}", target=hook.target_name)
        why.__cause__ = error
    known, _last[hook] = _last.get(hook), why
    if done is not None and not isinstance(why, Awaited):
        _log.warning("%r is not in force in %s: %s", hook, done, why)
    elif not isinstance(why, (Awaited, MissingTargetError)) and str(known) != str(why):
        _log.warning("%r is not in force: %s", hook, why)
    return why


def executed(module: str) -> None:
    """Puts hooks on a module after its code has run.

    Raises:
        HookError: The target of a strict hook is missing or does not fit.
        OrderError: The constraints of a strict hook and others form a cycle.
    """
    for hook in chain.added():
        if (hook.path or "").startswith(f"{module}."):
            problem = attach(hook, done=module)
            if hook.strict and isinstance(problem, Exception):
                raise problem


class _Started(ModuleSpec):
    """The spec of a module that was being imported when a hook was tried.

    After the import, the hook is tried again.
    """

    @property
    def _initializing(self) -> bool:
        return bool(self.__dict__["_initializing"])

    @_initializing.setter
    def _initializing(self, value: bool) -> None:
        self.__dict__["_initializing"] = value
        if not value:
            self.__class__ = ModuleSpec  # type: ignore[assignment]
            if self.name in sys.modules:  # otherwise the import has failed
                executed(self.name)


def _has_ended(module: str) -> bool:
    """Whether the import of a module has ended; if not, hooks are tried again at its end."""
    spec = getattr(sys.modules.get(module), "__spec__", None)
    if type(spec) is ModuleSpec:
        spec.__class__ = _Started
        if not spec.__dict__.get("_initializing"):
            spec.__class__ = ModuleSpec
    return spec is not None and not getattr(spec, "_initializing", False)


def _still_waits(hook: Hook) -> Awaited | MissingTargetError | None:
    """A cheap check: the last reason to wait if it still holds, or None if the hook must be tried again."""
    last = _last.get(hook)
    if not isinstance(last, (Awaited, MissingTargetError)) or last.module is None:
        return None
    names = [name for name in modules_of(hook.path or "") if len(name) >= len(last.module)]
    return last if not any(name in sys.modules for name in names) else None
