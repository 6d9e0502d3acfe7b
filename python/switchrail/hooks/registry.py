"""The hooks of one runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from switchrail.errors import HookError
from switchrail.hooks import chain
from switchrail.hooks.hook import Hook, Kind
from switchrail.hooks.target import resolve


class Hooks:
    """What one runtime put on functions of this process.

    All methods can be called at any time and from any thread; a lock is held only around a change, and calls
    of hooked functions take none. Dropping this object removes nothing: `clear` does.
    """

    def prepare(
        self,
        target: str | FunctionType,
        fn: Callable[..., Any],
        kind: Kind = "before",
        *,
        source: str = "user",
        priority: int = 0,
        before: Sequence[str] = (),
        after: Sequence[str] = (),
    ) -> Hook:
        """Makes and checks a hook that is not in force yet, for `commit`; see `add`."""
        return Hook(resolve(target), fn, kind, source, priority, tuple(before), tuple(after), self)

    def commit(self, hooks: Sequence[Hook]) -> None:
        """Puts prepared hooks in force: all of them, or none.

        Raises:
            HookError: A target has one already, or its code was swapped by somebody else since it was hooked;
                or a hook was prepared by another `Hooks`.
            OrderError: The constraints of the hooks on one target form a cycle.
        """
        for hook in hooks:
            if hook.owner is not self:
                raise HookError(f"{hook!r} was prepared by another Hooks", target=hook.target_name)
        chain.change(add=hooks)

    def add(
        self,
        target: str | FunctionType,
        fn: Callable[..., Any],
        kind: Kind = "before",
        *,
        source: str = "user",
        priority: int = 0,
        before: Sequence[str] = (),
        after: Sequence[str] = (),
    ) -> Hook:
        """Puts a hook in force, for every call that starts after this returns.

        Args:
            target: A plain Python function, or the dotted path of one, whose module is then imported.
            fn: What to call; the package's documentation says with what, for each kind.
            kind: `before`, `after`, `around` or `replace`.
            source: The distribution that the hook comes from.
            priority: Higher ones are nearer to the caller.
            before: Sources, or names of hooks, that this one is nearer to the caller than, on this target.
                What is not there constrains nothing.
            after: Sources, or names of hooks, that are nearer to the caller than this one.

        Returns:
            The hook, for `remove`.

        Raises:
            HookError: The target is not there or is no plain Python function; the hook can't work on it, or
                the target has it already; somebody else has swapped the target's code since it was hooked.
            OrderError: The constraints of the hooks on the target form a cycle.
        """
        hook = self.prepare(target, fn, kind, source=source, priority=priority, before=before, after=after)
        self.commit([hook])
        return hook

    def remove(self, *hooks: Hook) -> None:
        """Takes hooks out of force; with its last one a function has its own code back.

        A function whose code somebody else has swapped since is left as it is, with a warning in the log. A
        hook that is not in force is left out.
        """
        chain.change(remove=[hook for hook in hooks if hook.owner is self])

    def clear(self) -> None:
        """Takes all hooks of this object out of force."""
        self.remove(*self.list())

    def list(self, target: str | FunctionType | None = None) -> tuple[Hook, ...]:
        """The hooks of this object in force, on one target or on all, in their running order."""
        running = chain.running(None if target is None else resolve(target))
        return tuple(hook for hook in running if hook.owner is self)
