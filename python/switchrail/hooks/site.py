"""Sites: the functions and classes that can have a chain of hooks."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, ClassVar, Final, Protocol

from switchrail.hooks.hook import Hook, name_of, nature_of
from switchrail.hooks.lock import change_lock
from switchrail.hooks.parameters import Parameters
from switchrail.hooks.redirect import redirected
from switchrail.hooks.trampoline import build

_FIRST: Final[dict[str, tuple[str, ...]]] = {"after": ("result",), "around": ("original",)}


class Placement(Protocol):
    """Makes calls of another object or attribute lead to a function as long as the function has hooks."""

    def put(self) -> None:
        """Makes calls lead to the function. May be called again."""

    def take(self) -> None:
        """Undoes `put`, unless other code has changed the result."""


class Site(ABC):
    """A function or class that can have a chain of hooks. Sites of the same object are equal.

    Hooks change the state of a site: for a function its code, for a class the class that replaces it.
    """

    moves_hooks: ClassVar[bool] = False
    """Whether hooks on this site move hooks of other sites, as on a class; see `moves`."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The site's name for messages."""

    @abstractmethod
    def found(self) -> object:
        """The site's current state."""

    def own(self, first: Any) -> Any:
        """The state without hooks, given the state before the first hook was added."""
        return first

    @abstractmethod
    def made(self, own: Any, hooks: Sequence[Hook]) -> object:
        """The state with these hooks (at least one, in running order), given the state without hooks."""

    @abstractmethod
    def install(self, state: Any, *, hooked: bool) -> None:
        """Sets the state; `hooked` says whether the new state has hooks."""

    @abstractmethod
    def problem_of(self, hook: Hook, wanted: Mapping[Site, Sequence[Hook]] | None = None) -> str | None:
        """Why a hook can't be put on this site; None if it can. `wanted` has the hooks of all sites."""

    def check(self, hook: Hook, wanted: Mapping[Site, Sequence[Hook]] | None = None) -> None:
        """Raises a HookError if a hook can't be put on this site; see `problem_of`."""
        problem = self.problem_of(hook, wanted)
        if problem is not None:
            raise hook.refusal(problem)

    def moves(self, hook: Hook, sites: Iterable[Site]) -> Iterable[tuple[Site, Site | None]]:
        """Pairs of sites. Hooks of a pair's first site run on the second site, or nowhere if that is None.

        Args:
            hook: The first hook of this site, which causes the moves.
            sites: All sites with hooks.
        """
        return ()


@dataclass(frozen=True)
class Function(Site):
    """A Python function as a site. Its state is the function's code."""

    function: FunctionType
    placement: Placement | None = field(default=None, compare=False)
    takes: Parameters | None = field(default=None, compare=False)
    """The parameters that hooks must accept; None means the function's own parameters."""

    @property
    def name(self) -> str:
        """The function's module and qualified name."""
        return name_of(self.function)

    def found(self) -> CodeType:
        """The function's code."""
        return self.function.__code__

    def own(self, first: CodeType) -> CodeType:
        """The function's code; in a method of a replacing class, with `super` renamed."""
        return redirected(self.function, first)

    def made(self, own: CodeType, hooks: Sequence[Hook]) -> CodeType:
        """The trampoline for these hooks."""
        return build(self.function, own, hooks)

    def install(self, state: CodeType, *, hooked: bool) -> None:
        """Swaps the code in one assignment, then puts or takes the function's placement, if any."""
        self.function.__code__ = state
        if self.placement is not None:
            (self.placement.put if hooked else self.placement.take)()

    def problem_of(self, hook: Hook, wanted: Mapping[Site, Sequence[Hook]] | None = None) -> str | None:
        """Compares the hook's parameters and sort of function with the target's."""
        valid = {"plain"}
        if hook.kind != "before":  # a `before` hook's result is used at once, not awaited or iterated
            valid.add(nature_of(self.function))
        if hook.nature not in valid:
            return (
                f"the hook is a {hook.nature} function; valid for this kind and target: "
                f"a {' or '.join(sorted(valid))} function"
            )
        try:
            parameters = self.takes or Parameters.of(self.function.__code__)
        except ValueError as error:
            return f"the target can't be hooked: {error}"
        if hook.signature is None:
            return None
        first = _FIRST.get(hook.kind, ())
        problem = parameters.problem_of(hook.signature, *first)
        return problem and f"it can't be called as {parameters.call('fn', *first)}: {problem}"


# Sites by (id of a class, name of an inherited attribute) or (id of an object, ""), so that equal targets
# have the same site. A site keeps its class or object alive. Written under the lock.
_shared: Final[weakref.WeakValueDictionary[tuple[int, str], Function]] = weakref.WeakValueDictionary()


def known(key: tuple[int, str]) -> Function | None:
    """The existing site for a key, if any."""
    return _shared.get(key)


def shared(key: tuple[int, str], made: Function) -> Function:
    """The only site for a key: `made`, unless another thread was first.

    The caller creates the site without the lock, because creating a site reads an object's signature. `made`
    is not a closure that creates the site, because `replace_held` would also change the closure's cells.
    """
    with change_lock:
        return _shared.setdefault(key, made)
