"""Hooks: functions put before, after, around or in place of a callable.

A hooked Python function stays the same object; its code is swapped for a trampoline, which runs the hooks and
the original. So every reference to the function leads to its hooks, from their addition until their removal.
Other callables, such as C functions, are replaced by a stand-in in the objects that refer to them. A class is
replaced by installing another class's namespace in it. `docs/hooks.md` explains each kind of target.

The first hook in the running order is the nearest to the caller. With hooks of the sources `a` and `b`, in
this order, a call runs:

    a's before, b's before, a's around { b's around { the original } }, b's after, a's after

A `replace` hook runs instead of the original. If there are several, only the first one runs. Hooks are called
with the target's arguments, including its defaults:

| kind | called as | returns |
|---|---|---|
| before | `fn(*args, **kwargs)` | None, or `(args, kwargs)` for the rest of the chain |
| around | `fn(original, *args, **kwargs)` | the result |
| replace | `fn(*args, **kwargs)` | the result |
| after | `fn(result, *args, **kwargs)` | None for unchanged, a new result, or `RETURN_NONE` |

Known limits: the trampoline adds a frame between the caller and the original. So `stacklevel` and
`sys._getframe` in the original count one frame more, and the arguments live until the trampoline returns. A
copy of a hooked function's code keeps the hooks that the function had when the code was copied. The
`original` that an `around` hook gets has the defaults that the target had when its hooks last changed.
`Hooks.explain` shows which hooks run on a target, which don't, and which calls bypass them.
"""

from __future__ import annotations

from switchrail.hooks.explain import Explanation, Step
from switchrail.hooks.hook import RETURN_NONE, Hook, Kind
from switchrail.hooks.registry import Hooks

__all__ = ["RETURN_NONE", "Explanation", "Hook", "Hooks", "Kind", "Step"]
