"""The hooks of one runtime."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from switchrail.arguments import as_list, check_names, lists_options
from switchrail.errors import HookError, OrderError
from switchrail.hooks import chain, explain, imports, waiting
from switchrail.hooks.explain import Explanation
from switchrail.hooks.hook import HOOK_OPTIONS, Hook, HookOptions, Kind, ordered
from switchrail.hooks.site import Site
from switchrail.hooks.target import Awaited, MissingTargetError, resolve

if TYPE_CHECKING:
    from typing_extensions import Unpack

_log: Final = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])


class Hooks:
    """The hooks that one runtime has put on targets in this process.

    All methods can be called at any time and from any thread. Only changes hold a lock; calls of hooked
    functions don't. Hooks remain when this object is dropped; `clear` removes them.

    Attributes:
        strict: Whether a missing target, and a second `replace` on one target, are errors; otherwise they are
            logged as warnings.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict

    @lists_options(HookOptions, HOOK_OPTIONS)
    def prepare(
        self, target: object, fn: Callable[..., Any], kind: Kind = "before", **options: Unpack[HookOptions]
    ) -> Hook:
        """Creates and checks a hook for `commit`; see `add`."""
        check_names("prepare", options, HOOK_OPTIONS)
        given: HookOptions = {**HOOK_OPTIONS, **options}
        strict = self.strict if given["strict"] is None else given["strict"]
        if isinstance(target, str):
            imports.watch(target)  # first of all, since another thread may start the import
        site: Site | None = None
        missing: MissingTargetError | None = None
        try:
            found = resolve(target)
            site = None if isinstance(found, Awaited) else found
        except MissingTargetError as error:
            if strict:
                raise
            missing = error
        name = target if isinstance(target, str) else site.name if site is not None else repr(target)
        path = name if isinstance(target, str) or _leads_to(name, site) else None
        hook = Hook(
            target_name=name,
            fn=fn,
            kind=kind,
            source=given["source"],
            priority=given["priority"],
            before=(*as_list("before", given["before"]),),
            after=(*as_list("after", given["after"]),),
            owner=self,
            site=site,
            path=path,
            plugin=given["plugin"],
            version=given["version"],
            strict=strict,
        )
        if site is not None:
            site.check(hook)
        if missing is not None:
            _log.warning("%r waits for its target: %s", hook, missing)
        return hook

    def commit(self, hooks: Sequence[Hook], *, strict: bool | None = None) -> None:
        """Activates prepared hooks: all of them, or none.

        Args:
            hooks: Results of `prepare`.
            strict: Whether a second `replace` on one target is an error; None means the value of
                `Hooks.strict`.

        Raises:
            HookError: A target already has the hook, or in strict mode gets a second `replace` hook; other
                code has changed a hooked function's code; or a hook was prepared by another `Hooks`.
            OrderError: The constraints of the hooks on one target form a cycle.
        """
        for hook in hooks:
            if hook.owner is not self:
                raise HookError(f"{hook!r} was prepared by another Hooks", target=hook.target_name)
        for hook in hooks:
            imports.watch(hook.path)
        chain.change(
            add={hook: () if hook.site is None else (hook.site,) for hook in hooks},
            strict=self.strict if strict is None else strict,
        )
        # Modules may have been imported since the hooks were prepared.
        for hook, problem in waiting.retry().items():
            if hook.strict and hook in hooks and isinstance(problem, Exception):
                chain.change(remove=hooks)
                raise problem

    @overload
    def add(
        self, target: object, fn: None = None, kind: Kind = "before", **options: Unpack[HookOptions]
    ) -> Callable[[F], F]: ...

    @overload
    def add(
        self, target: object, fn: Callable[..., Any], kind: Kind = "before", **options: Unpack[HookOptions]
    ) -> Hook: ...

    @lists_options(HookOptions, HOOK_OPTIONS)
    def add(
        self,
        target: object,
        fn: Callable[..., Any] | None = None,
        kind: Kind = "before",
        **options: Unpack[HookOptions],
    ) -> Hook | Callable[[F], F]:
        """Adds a hook. It runs in every call of the target that starts after `add` has returned.

        Without `fn` this is a decorator, which leaves the function unchanged.

        Args:
            target: A function, method, class, property or other callable, or its dotted path. If the
                target's module is not imported yet, the hook waits for the import.
            fn: The callable to run. The docstring of `switchrail.hooks` describes its arguments for each
                kind.
            kind: `before`, `after`, `around` or `replace`.
            source: The distribution that the hook comes from.
            plugin: The plugin of that distribution; explanations show it.
            version: The distribution's version; explanations show it.
            priority: Hooks of higher priority are nearer to the caller.
            before: Sources, or names of hooks, that this hook runs before. Unknown names have no effect.
            after: Sources, or names of hooks, that this hook runs after.
            strict: Overrides `Hooks.strict` for this hook.

        Returns:
            The hook, for `remove`, `disable` and `enable`.

        Raises:
            HookError: The target can't be hooked or already has the hook, or the hook doesn't fit it; in
                strict mode, the target doesn't exist or gets a second `replace` hook; or other code has
                changed the target's code since it was hooked.
            OrderError: The constraints of the hooks on the target form a cycle.
            ArgumentError: An option is unknown, or `before` or `after` is a string, not a list.
        """
        check_names("add", options, HOOK_OPTIONS)
        if fn is None:
            return decorator(self.add, target, kind, options)
        hook = self.prepare(target, fn, kind, **options)
        self.commit([hook], strict=options.get("strict"))
        return hook

    def remove(self, *hooks: Hook) -> None:
        """Removes hooks. When a function loses its last hook, its own code is restored.

        If other code has meanwhile changed the function's code, the changed code stays, and a warning is
        logged. Hooks that were not added are ignored.
        """
        chain.change(remove=[hook for hook in hooks if hook.owner is self])

    def disable(self, *hooks: Hook) -> None:
        """Disables hooks: they don't run, but keep their positions in the order."""
        chain.change(disable=[hook for hook in hooks if hook.owner is self and hook in chain.added()])

    def enable(self, *hooks: Hook) -> None:
        """Enables disabled hooks. Waiting hooks are put on their targets if these exist now."""
        chain.change(enable=[hook for hook in hooks if hook.owner is self])
        waiting.retry()

    def clear(self) -> None:
        """Removes all hooks of this object, including disabled and waiting ones."""
        self.remove(*(hook for hook in chain.added() if hook.owner is self))

    def list(self, target: object = None) -> tuple[Hook, ...]:
        """This object's enabled hooks on a target in their running order; without a target, those on all.

        First tries to put waiting hooks on their targets.

        Raises:
            HookError: The target doesn't exist or can't be hooked.
        """
        waiting.retry()
        site = None if target is None else resolve(target)
        if isinstance(site, Awaited):
            return ()
        return tuple(hook for hook in chain.running(site) if hook.owner is self)

    def explain(self, target: object) -> Explanation:
        """Explains all hooks of a target in this process, in the order of a call.

        Includes the hooks of other `Hooks` objects.

        Raises:
            HookError: The target doesn't exist and no hook waits for it, or the target can't be hooked.
        """
        return explain.of(target)

    def explain_all(self) -> tuple[Explanation, ...]:
        """`explain` for each target that is hooked or that a hook waits for, sorted by target."""
        return explain.everything()

    def chains(self) -> Sequence[tuple[str, Sequence[str]]]:
        """The name of each target and descriptions of its enabled hooks, in order; for fingerprints.

        Includes waiting hooks, so that the result does not depend on which modules are imported already.
        """
        enabled: dict[str, list[Hook]] = {}
        for hook in chain.added():
            if hook.owner is self and chain.is_enabled(hook):
                enabled.setdefault(hook.target_name, []).append(hook)
        return [
            (target, [f"{hook.kind} {hook.name} from {hook.source}" for hook in _in_order(hooks)])
            for target, hooks in enabled.items()
        ]

    def disabled(self) -> tuple[Hook, ...]:
        """This object's disabled hooks in the order of addition."""
        return tuple(hook for hook in chain.added() if hook.owner is self and not chain.is_enabled(hook))

    def retry(self) -> tuple[Hook, ...]:
        """Puts waiting hooks on targets that exist now. Returns this object's hooks that still wait.

        When a module is imported, its hooks are put in place before the import returns. Other modules need a
        retry: those that are loaded from a file path (as transformers loads a model's own code), put into
        `sys.modules` by hand, or found by a finder in front of Switchrail's. Attributes that a module gets
        after its import need a retry too. `add`, `enable`, `list` and `explain` retry as well.
        """
        waiting.retry()
        return self.waiting()

    def waiting(self) -> tuple[Hook, ...]:
        """This object's hooks whose target doesn't exist yet, in the order of addition."""
        return tuple(hook for hook, sites in chain.added().items() if hook.owner is self and not sites)


def decorator(
    add: Callable[..., object], target: object, kind: Kind, options: Mapping[str, Any]
) -> Callable[[F], F]:
    """A decorator that passes a function to `add`, and returns it unchanged."""

    # Not a closure in `add`: its cell would refer to the target, and `replace_held` would change the cell.
    def decorate(fn: F) -> F:
        add(target, fn, kind, **options)
        return fn

    return decorate


def _leads_to(path: str, site: Site | None) -> bool:
    try:
        return resolve(path) == site
    except HookError:  # for example the path of a function that is local to another function
        return False


def _in_order(hooks: Sequence[Hook]) -> Sequence[Hook]:
    try:
        return ordered(hooks)
    except OrderError:  # waiting hooks can form a cycle after one of them was enabled again
        return sorted(hooks, key=lambda hook: (hook.name, hook.source))
