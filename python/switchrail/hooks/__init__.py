"""Hooks: functions put before, after, around or in place of something that can be called.

A hooked Python function stays the same object; its code is swapped for a trampoline that runs the chain. So
everybody who holds the function sees the hooks, however it is held, from the moment that they are added until
they are removed. What has no Python code is replaced wherever it is held; a class takes over another's
namespace. `docs/hooks.md` says what each kind of target means.

The first hook in the running order is the nearest to the caller. With hooks of the sources `a` and `b`, in
this order, a call runs:

    a's before, b's before, a's around { b's around { the original } }, b's after, a's after

A `replace` stands where the original stood; of several, the first in order counts. Callables take what the
target takes, defaults filled in:

| kind | called as | returns |
|---|---|---|
| before | `fn(*args, **kwargs)` | None, or `(args, kwargs)` for the rest of the chain |
| around | `fn(original, *args, **kwargs)` | the result |
| replace | `fn(*args, **kwargs)` | the result |
| after | `fn(result, *args, **kwargs)` | None for unchanged, another result, or `RETURN_NONE` |

Known limits. A frame of the trampoline's lies above the original's: `stacklevel` and `sys._getframe` count
one more, and what the arguments hold lives until the call returns. A copy made of a hooked function's code
keeps the chain that it was made with. `original` has the defaults that the target had when its chain last
changed. `Hooks.explain` shows what runs on a target, what doesn't, and what passes it by.
"""

from __future__ import annotations

from switchrail.hooks.explain import Explanation, Step
from switchrail.hooks.hook import RETURN_NONE, Hook, Kind
from switchrail.hooks.registry import Hooks

__all__ = ["RETURN_NONE", "Explanation", "Hook", "Hooks", "Kind", "Step"]
