"""The decorator `plugin`, with which plugins declare the order of their functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from switchrail import _core
from switchrail._core import Plugin
from switchrail.arguments import texts, whole

_ATTRIBUTE = "__switchrail_plugin__"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Declaration:
    """The arguments of `plugin`."""

    priority: int = 0
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


def plugin(*, priority: int = 0, before: Iterable[str] = (), after: Iterable[str] = ()) -> Callable[[F], F]:
    """Decorates a plugin's function to declare when it runs; undecorated functions have the defaults.

    A call of `load` first imports all plugins. Then their functions run, ordered by `before` and `after`,
    then by priority, then by the distribution's name. Functions that ran in an earlier call don't run again.

    Args:
        priority: Plugins of higher priority run earlier.
        before: Plugins that run after this one: a name, `DISTRIBUTION:NAME`, or a distribution's name for all
            of its plugins. Unknown names have no effect.
        after: Plugins that run before this one, in the same forms as `before`.

    Raises:
        ArgumentError: An argument has a wrong type.
    """
    declaration = Declaration(
        whole("priority", priority, -(2**31), 2**31 - 1),
        (*texts("before", before),),
        (*texts("after", after),),
    )

    def decorate(function: F) -> F:
        setattr(function, _ATTRIBUTE, declaration)
        return function

    return decorate


def declaration_of(function: object) -> Declaration:
    """The declaration of a plugin's function."""
    found = getattr(function, _ATTRIBUTE, None)
    return found if isinstance(found, Declaration) else Declaration()


def in_order(plugins: Sequence[Plugin], declarations: Sequence[Declaration]) -> list[int]:
    """The order in which the plugins' functions run, as indices.

    Raises:
        OrderError: The declarations form a cycle; the error's `members` are the plugins' qualified names.
    """
    declared = [(each.priority, each.before, each.after) for each in declarations]
    return _core.order_plugins(list(zip(plugins, declared, strict=True)))
