"""Where hooks can stand: a function whose code carries the chain, and what makes it reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, Final, Protocol

from switchrail.hooks.hook import Hook, name_of, nature_of
from switchrail.hooks.parameters import Parameters
from switchrail.hooks.trampoline import build

_FIRST: Final[dict[str, tuple[str, ...]]] = {"after": ("result",), "around": ("original",)}


class Placement(Protocol):
    """What a hooked function needs beside its code, while hooks are in force on it."""

    def put(self) -> None:
        """Makes calls reach the function; again if it was put already."""

    def take(self) -> None:
        """Undoes it, where it is still ours."""


class Site(Protocol):
    """Something that a chain can be put on. Equal ones are the same place."""

    @property
    def name(self) -> str:
        """For people."""

    def found(self) -> object:
        """What stands there now."""

    def made(self, own: Any, hooks: Sequence[Hook]) -> object:
        """What is to stand there for a chain, in its running order, one or more; `own` stood there first."""

    def install(self, state: Any, *, hooked: bool) -> None:
        """Lets what `found` or `made` returned stand there; `hooked` says that a chain runs there."""

    def problem_of(self, hook: Hook) -> str | None:
        """Why a hook can't stand here; None if it can."""


@dataclass(frozen=True)
class Function:
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

    def made(self, own: CodeType, hooks: Sequence[Hook]) -> CodeType:
        """A trampoline."""
        return build(self.function, own, hooks)

    def install(self, state: CodeType, *, hooked: bool) -> None:
        """Swaps the code by one assignment; then makes calls reach it, or no longer."""
        self.function.__code__ = state
        if self.placement is not None:
            (self.placement.put if hooked else self.placement.take)()

    def problem_of(self, hook: Hook) -> str | None:
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
