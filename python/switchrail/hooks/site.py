"""Where hooks can stand: a function whose code carries the chain, and what makes it reached."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, ClassVar, Final, Protocol

from switchrail.hooks.hook import Hook, name_of, nature_of
from switchrail.hooks.parameters import Parameters
from switchrail.hooks.redirect import redirected
from switchrail.hooks.trampoline import build

_FIRST: Final[dict[str, tuple[str, ...]]] = {"after": ("result",), "around": ("original",)}


class Placement(Protocol):
    """What a hooked function needs beside its code, while hooks are in force on it."""

    def put(self) -> None:
        """Makes calls reach the function; again if it was put already."""

    def take(self) -> None:
        """Undoes it, where it is still ours."""


class Site(ABC):
    """A place where a chain can stand. Equal ones are the same place."""

    leads: ClassVar[bool] = False
    """Whether hooks here lead calls, and the hooks of other places, elsewhere: see `moves`."""

    @property
    @abstractmethod
    def name(self) -> str:
        """For people."""

    @abstractmethod
    def found(self) -> object:
        """What stands there now."""

    def own(self, first: Any) -> Any:
        """What is to stand there without hooks; `first` stood there before the first one."""
        return first

    @abstractmethod
    def made(self, own: Any, hooks: Sequence[Hook]) -> object:
        """What is to stand there for one or more hooks in their running order, in place of `own`."""

    @abstractmethod
    def install(self, state: Any, *, hooked: bool) -> None:
        """Puts there what `found`, `own` or `made` returned; `hooked` says whether a chain runs then."""

    @abstractmethod
    def problem_of(self, hook: Hook, wanted: Mapping[Site, Sequence[Hook]] | None = None) -> str | None:
        """Why a hook can't stand here, given which hooks are wanted at all places; None if it can."""

    def moves(self, hook: Hook, sites: Iterable[Site]) -> Iterable[tuple[Site, Site | None]]:
        """The places whose hooks go elsewhere while `hook` runs here first, and where to; None: nowhere.

        Args:
            hook: The hook.
            sites: All places that hooks were put on.
        """
        return ()


@dataclass(frozen=True)
class Function(Site):
    """A function of this process; its chain is its code."""

    function: FunctionType
    placement: Placement | None = field(default=None, compare=False)
    takes: Parameters | None = field(default=None, compare=False)
    """What hooks are held to, where the function's own parameters say less."""

    @property
    def name(self) -> str:
        """Its module and qualified name."""
        return name_of(self.function)

    def found(self) -> CodeType:
        """Its code."""
        return self.function.__code__

    def own(self, first: CodeType) -> CodeType:
        """Its own code; a method of a replacing class asks for `super` by another name."""
        return redirected(self.function, first)

    def made(self, own: CodeType, hooks: Sequence[Hook]) -> CodeType:
        """A trampoline."""
        return build(self.function, own, hooks)

    def install(self, state: CodeType, *, hooked: bool) -> None:
        """Swaps the code by one assignment; then makes calls reach it, or no longer."""
        self.function.__code__ = state
        if self.placement is not None:
            (self.placement.put if hooked else self.placement.take)()

    def problem_of(self, hook: Hook, wanted: Mapping[Site, Sequence[Hook]] | None = None) -> str | None:
        """Compares what hook and function take, and what their calls make."""
        valid = {"plain"}
        if hook.kind != "before":  # which runs within the call and decides on its arguments
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
