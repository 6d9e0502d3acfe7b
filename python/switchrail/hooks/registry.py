"""The hooks of one runtime."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from switchrail.arguments import check_names, lists_options, several
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

    All methods can be called at any time and from any thread. A lock is held during changes only; calls of
    hooked functions take none. Hooks stay when this object is dropped; `clear` removes them.

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
        """Makes and checks a hook that `commit` can put in force; see `add`."""
        check_names("prepare", options, HOOK_OPTIONS)
        given: HookOptions = {**HOOK_OPTIONS, **options}
        strict = self.strict if given["strict"] is None else given["strict"]
        if isinstance(target, str):
            imports.watch(target)  # first of all, since another thread may begin the import now
        place: Site | None = None
        missing: MissingTargetError | None = None
        try:
            found = resolve(target)
            place = None if isinstance(found, Awaited) else found
        except MissingTargetError as error:
            if strict:
                raise
            missing = error
        name = target if isinstance(target, str) else place.name if place is not None else repr(target)
        path = name if isinstance(target, str) or _leads_to(name, place) else None
        hook = Hook(
            target_name=name,
            fn=fn,
            kind=kind,
            source=given["source"],
            priority=given["priority"],
            before=(*several("before", given["before"]),),
            after=(*several("after", given["after"]),),
            owner=self,
            site=place,
            path=path,
            plugin=given["plugin"],
            version=given["version"],
            strict=strict,
        )
        if place is not None:
            place.check(hook)
        if missing is not None:
            _log.warning("%r waits for its target: %s", hook, missing)
        return hook

    def commit(self, hooks: Sequence[Hook], *, strict: bool | None = None) -> None:
        """Puts prepared hooks in force: all of them, or none.

        Args:
            hooks: Results of `prepare`.
            strict: Whether a second `replace` on one target is an error; None: the value of `Hooks.strict`.

        Raises:
            HookError: A target already has the hook, other code has changed a hooked function's code, or a
                hook was prepared by another `Hooks`.
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
        """Puts a hook in force, for every call that starts after this returns.

        Without `fn` it is a decorator, which leaves the function as it is.

        Args:
            target: A function, method, class, property or other callable, or the dotted path of one. If its
                module is not imported yet, the hook waits for the import.
            fn: The callable to run. The docstring of `switchrail.hooks` has its arguments for each kind.
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
            HookError: The target can't be hooked, already has the hook, doesn't fit it, or in strict mode
                doesn't exist; or other code has changed the hooked target's code.
            OrderError: The constraints of the hooks on the target form a cycle.
            ArgumentError: `before` or `after` is a string, not a list.
        """
        check_names("add", options, HOOK_OPTIONS)
        if fn is None:
            return decorator(self.add, target, kind, options)
        hook = self.prepare(target, fn, kind, **options)
        self.commit([hook], strict=options.get("strict"))
        return hook

    def remove(self, *hooks: Hook) -> None:
        """Takes hooks out of force. When a function loses its last hook, it gets its own code back.

        If other code has changed the function's code since, the changed code stays, and a warning is logged.
        Hooks that are not in force are ignored.
        """
        chain.change(remove=[hook for hook in hooks if hook.owner is self])

    def disable(self, *hooks: Hook) -> None:
        """Stops hooks from running; they keep their places in the order."""
        chain.change(disable=[hook for hook in hooks if hook.owner is self and hook in chain.added()])

    def enable(self, *hooks: Hook) -> None:
        """Lets disabled hooks run again. Hooks that wait are put on targets that exist by now."""
        chain.change(enable=[hook for hook in hooks if hook.owner is self])
        waiting.retry()

    def clear(self) -> None:
        """Takes all hooks of this object out of force, disabled and waiting ones too."""
        self.remove(*(hook for hook in chain.added() if hook.owner is self))

    def list(self, target: object = None) -> tuple[Hook, ...]:
        """This object's hooks that run, on one target or on all, in their running order.

        First tries to put waiting hooks on their targets.
        """
        waiting.retry()
        site = None if target is None else resolve(target)
        if isinstance(site, Awaited):
            return ()
        return tuple(hook for hook in chain.running(site) if hook.owner is self)

    def explain(self, target: object) -> Explanation:
        """All hooks of a target in this process, also those of other `Hooks`, in the order of a call.

        Raises:
            HookError: The target doesn't exist and no hook waits for it, or the target can't be hooked.
        """
        return explain.of(target)

    def explain_all(self) -> tuple[Explanation, ...]:
        """`explain` for each target that is hooked or that a hook waits for, sorted by target."""
        return explain.everything()

    def chains(self) -> Sequence[tuple[str, Sequence[str]]]:
        """Pairs (name of the target, texts for its enabled hooks in their order), for fingerprints.

        Waiting hooks are included, so that the result does not depend on the modules imported so far.
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
        """Puts waiting hooks on targets that exist by now; returns this object's hooks that still wait.

        An imported module gets its hooks before the import returns. A retry is needed for modules that are
        loaded by their file's location (as transformers loads a model's own code), put into `sys.modules` by
        hand or found by a finder before Switchrail's, and for attributes that a module gets after its import.
        `add`, `enable`, `list` and `explain` retry as well.
        """
        waiting.retry()
        return self.waiting()

    def waiting(self) -> tuple[Hook, ...]:
        """This object's hooks whose target doesn't exist yet, in the order of addition."""
        return tuple(hook for hook, sites in chain.added().items() if hook.owner is self and not sites)


def decorator(
    add: Callable[..., object], target: object, kind: Kind, options: Mapping[str, Any]
) -> Callable[[F], F]:
    """A decorator that passes functions to `add`, and returns them unchanged."""

    # Not a closure in `add`: its cell would keep the target, and the search for holders would find that cell.
    def decorate(fn: F) -> F:
        add(target, fn, kind, **options)
        return fn

    return decorate


def _leads_to(path: str, site: Site | None) -> bool:
    try:
        return resolve(path) == site
    except HookError:  # the path of, for example, a function defined in another function
        return False


def _in_order(hooks: Sequence[Hook]) -> Sequence[Hook]:
    try:
        return ordered(hooks)
    except OrderError:  # a cycle of hooks is no error while they wait
        return sorted(hooks, key=lambda hook: (hook.name, hook.source))
