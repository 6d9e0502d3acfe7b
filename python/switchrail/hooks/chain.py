"""Which functions are hooked in this process, and the swap of their code.

A function's code belongs to the process, so this table does too, whatever number of runtimes add hooks to it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Final

from switchrail import _core
from switchrail.errors import HookError
from switchrail.hooks.hook import Hook
from switchrail.hooks.trampoline import build

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Chain:
    own: CodeType
    """The function's own code, put back with its last hook."""
    installed: CodeType
    """What the function's code is, unless somebody else has swapped it."""
    hooks: tuple[Hook, ...]
    """In the order in which they were added, which decides between equals."""
    running: tuple[Hook, ...]


# A finalizer can run inside a change, on the same thread, and may want to remove hooks of its own.
_lock: Final = threading.RLock()
_changing = False
_removed_meanwhile: Final[list[Hook]] = []

# Replaced, never changed in place: readers take the reference and no lock.
_chains: dict[FunctionType, _Chain] = {}

if hasattr(os, "register_at_fork"):  # else a child could inherit the lock from a thread that it doesn't have
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def running(target: FunctionType | None = None) -> tuple[Hook, ...]:
    """The hooks in force on one function, or on all, in the order in which they run."""
    chains = _chains
    if target is not None:
        return chains[target].running if target in chains else ()
    return tuple(hook for chain in chains.values() for hook in chain.running)


def change(*, add: Sequence[Hook] = (), remove: Sequence[Hook] = ()) -> None:
    """Adds or removes hooks: all of them, or none.

    Every call of a target runs the chain from before the change or the one from after it. All trampolines are
    compiled first, then the table is published, then each function's code is swapped by one assignment; where
    one fails, all are put back.

    Raises:
        HookError: A target has a hook already, or somebody else has swapped its code since it was hooked.
        OrderError: The hooks' constraints form a cycle.
    """
    global _changing
    with _lock:
        if _changing:
            if add:
                raise HookError(
                    f"{add[0]!r} can't be added from within another change", target=add[0].target_name
                )
            _removed_meanwhile.extend(remove)
            return
        _changing = True
        try:
            try:
                _change(add, remove)
            finally:
                while _removed_meanwhile:
                    _change((), [_removed_meanwhile.pop()])
        finally:
            _changing = False
    for target in dict.fromkeys(hook.target for hook in add if hook.kind == "replace"):
        first, *others = [hook for hook in running(target) if hook.kind == "replace"]
        for other in others:
            _log.warning("%r never runs: %r stands before it", other, first)


def _change(add: Sequence[Hook], remove: Sequence[Hook]) -> None:
    global _chains
    before = _chains
    after = dict(before)
    swaps: list[tuple[FunctionType, CodeType, CodeType]] = []
    for target in dict.fromkeys(hook.target for hook in (*add, *remove)):
        found = target.__code__
        chain = before.get(target) or _Chain(found, found, (), ())
        hooks = [hook for hook in chain.hooks if hook not in remove]
        for hook in add:
            if hook.target is target:
                _refuse_unfit(hook, hooks, swapped=found is not chain.installed)
                hooks.append(hook)
        if len(hooks) == len(chain.hooks):  # none of those to be removed is in force
            continue
        ordered = _ordered(hooks)
        if found is not chain.installed:
            installed = chain.installed
            _log.warning("%s keeps its code: it was swapped since it was hooked", chain.hooks[0].target_name)
        else:
            installed = build(target, chain.own, ordered) if hooks else chain.own
            swaps.append((target, found, installed))
        after.pop(target, None)
        if hooks:
            after[target] = _Chain(chain.own, installed, tuple(hooks), ordered)
    _chains = after
    try:
        for target, _, new in swaps:
            target.__code__ = new
    except BaseException:  # an audit hook may refuse, a signal may come between
        for target, old, new in swaps:
            if target.__code__ is new:
                target.__code__ = old
        _chains = before
        raise


def _refuse_unfit(hook: Hook, hooks: Sequence[Hook], *, swapped: bool) -> None:
    if swapped:
        problem = "somebody else has swapped the target's code since it was hooked"
    elif any((other.owner, other.kind, other.fn) == (hook.owner, hook.kind, hook.fn) for other in hooks):
        problem = "the target has it already"
    else:
        return
    raise HookError(f"{hook!r} can't be added: {problem}", target=hook.target_name)


def _ordered(hooks: Sequence[Hook]) -> tuple[Hook, ...]:
    items = [
        {
            "key": hook.name,
            "source": hook.source,
            "priority": hook.priority,
            "before": list(hook.before),
            "after": list(hook.after),
        }
        for hook in hooks
    ]
    return tuple(hooks[i] for i in _core.order(items))
