"""The hooks of one runtime."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from switchrail.arguments import check_names, lists_options, several
from switchrail.errors import HookError, OrderError
from switchrail.hooks import chain, explain, imports, waiting
from switchrail.hooks.explain import Explanation
from switchrail.hooks.hook import HOOK_OPTIONS, Hook, HookOptions, Kind, decorator, ordered
from switchrail.hooks.site import Site
from switchrail.hooks.target import Awaited, MissingTargetError, resolve

if TYPE_CHECKING:
    from typing_extensions import Unpack

_log: Final = logging.getLogger(__name__)

_Fn = TypeVar("_Fn", bound=Callable[..., Any])


def _leads_to(path: str, site: Site | None) -> bool:
    try:
        return resolve(path) == site
    except HookError:  # a function within a function, a name that means something else
        return False


def _in_order(hooks: Sequence[Hook]) -> Sequence[Hook]:
    try:
        return ordered(hooks)
    except OrderError:  # not all of them are in force
        return sorted(hooks, key=lambda hook: (hook.name, hook.source))


class Hooks:
    """What one runtime put on targets in this process.

    All methods can be called at any time and from any thread; a lock is held only around a change, and calls
    of hooked functions take none. Dropping this object removes nothing: `clear` does.

    Attributes:
        strict: Whether a target that does not exist, and a second `replace` on one target, are errors. Else
            they are reported in the log.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict

    @lists_options(HookOptions, HOOK_OPTIONS)
    def prepare(
        self, target: object, fn: Callable[..., Any], kind: Kind = "before", **options: Unpack[HookOptions]
    ) -> Hook:
        """Makes and checks a hook that is not in force yet, for `commit`; see `add`."""
        check_names("prepare", options, HOOK_OPTIONS)
        given: HookOptions = {**HOOK_OPTIONS, **options}
        strict = self.strict if given["strict"] is None else given["strict"]
        if isinstance(target, str):
            imports.watch(target)  # before the look: an import that another thread begins now is noticed
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
        problem = place.problem_of(hook) if place is not None else None
        if problem is not None:
            raise hook.refusal(problem)
        if missing is not None:
            _log.warning("%r waits for its target: %s", hook, missing)
        return hook

    def commit(self, hooks: Sequence[Hook], *, strict: bool | None = None) -> None:
        """Puts prepared hooks in force: all of them, or none.

        Args:
            hooks: What `prepare` made.
            strict: Whether a second `replace` on one target is an error; None: as `Hooks.strict` says.

        Raises:
            HookError: A target has one already, or its code was swapped by somebody else since it was hooked;
                or a hook was prepared by another `Hooks`.
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
        # Their modules may have been imported since they were prepared.
        for hook, problem in waiting.retry().items():
            if hook.strict and hook in hooks and isinstance(problem, Exception):
                chain.change(remove=hooks)
                raise problem

    @overload
    def add(
        self, target: object, fn: None = None, kind: Kind = "before", **options: Unpack[HookOptions]
    ) -> Callable[[_Fn], _Fn]: ...

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
    ) -> Hook | Callable[[_Fn], _Fn]:
        """Puts a hook in force, for every call that starts after this returns.

        Without `fn` it is a decorator, which leaves the function as it is.

        Args:
            target: A function, method, class, property or other object that can be called; or the dotted path
                of one. Where its module is not imported yet, the hook waits for that.
            fn: What to call; the package's documentation says with what, for each kind.
            kind: `before`, `after`, `around` or `replace`.
            source: The distribution that the hook comes from.
            plugin: The plugin of that distribution which adds it, and
            version: the distribution's version; for those who read what runs.
            priority: Higher ones are nearer to the caller.
            before: Sources, or names of hooks, that this one is nearer to the caller than, on this target.
                What is not there constrains nothing.
            after: Sources, or names of hooks, that are nearer to the caller than this one.
            strict: Overrides `Hooks.strict` for this hook.

        Returns:
            The hook, for `remove`, `disable` and `enable`.

        Raises:
            HookError: The target can't be hooked, or in strict mode isn't there; the hook can't work on it,
                or the target has it already; somebody else has swapped the target's code since it was hooked.
            OrderError: The constraints of the hooks on the target form a cycle.
            ArgumentError: `before` or `after` is one name, not several.
        """
        check_names("add", options, HOOK_OPTIONS)
        if fn is None:
            return decorator(self.add, target, kind, options)
        hook = self.prepare(target, fn, kind, **options)
        self.commit([hook], strict=options.get("strict"))
        return hook

    def remove(self, *hooks: Hook) -> None:
        """Takes hooks out of force; with its last one a function has its own code back.

        A function whose code somebody else has swapped since is left as it is, with a warning in the log. A
        hook that is not in force is left out.
        """
        chain.change(remove=[hook for hook in hooks if hook.owner is self])

    def disable(self, *hooks: Hook) -> None:
        """Lets hooks stay where they are without running."""
        chain.change(disable=[hook for hook in hooks if hook.owner is self and hook in chain.added()])

    def enable(self, *hooks: Hook) -> None:
        """Lets disabled hooks run again, waiting ones where their target is there by now."""
        chain.change(enable=[hook for hook in hooks if hook.owner is self])
        waiting.retry()

    def clear(self) -> None:
        """Takes all hooks of this object out of force, disabled and waiting ones too."""
        self.remove(*(hook for hook in chain.added() if hook.owner is self))

    def list(self, target: object = None) -> tuple[Hook, ...]:
        """The hooks of this object in force, on one target or on all, in their running order.

        Waiting ones are tried again before.
        """
        waiting.retry()
        site = None if target is None else resolve(target)
        if isinstance(site, Awaited):
            return ()
        return tuple(hook for hook in chain.running(site) if hook.owner is self)

    def explain(self, target: object) -> Explanation:
        """All hooks of a target in this process, those of other `Hooks` too, as a call runs them.

        Raises:
            HookError: The target is not there, and nothing waits for it; or it can't be hooked.
        """
        return explain.of(target)

    def explain_all(self) -> tuple[Explanation, ...]:
        """The same, of every target that is hooked or waited for, by target."""
        return explain.everything()

    def chains(self) -> Sequence[tuple[str, Sequence[str]]]:
        """For each target as it was named, texts for its enabled hooks in their order; for fingerprints.

        A hook that waits counts like one in force: which modules are imported already is no difference.
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
        """The hooks of this object that were disabled, in the order of their addition."""
        return tuple(hook for hook in chain.added() if hook.owner is self and not chain.is_enabled(hook))

    def retry(self) -> tuple[Hook, ...]:
        """Puts waiting hooks on targets that are there by now; returns those of this object that still wait.

        A module that is imported gets its hooks before the import returns. Not so a module that is loaded by
        its file's location, as transformers loads a model's own code, one that is put into `sys.modules` by
        hand, one that a finder before Switchrail's finds, and what a module gets after its import. `add`,
        `enable`, `list` and `explain` try again too.
        """
        waiting.retry()
        return self.waiting()

    def waiting(self) -> tuple[Hook, ...]:
        """The hooks of this object whose target isn't there yet, in the order of their addition."""
        return tuple(hook for hook, sites in chain.added().items() if hook.owner is self and not sites)
