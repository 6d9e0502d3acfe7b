"""A plugin's declared place in the order of plugins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from switchrail import _core
from switchrail._core import Plugin
from switchrail.arguments import texts
from switchrail.errors import ArgumentError

_ATTRIBUTE = "__switchrail_plugin__"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Declaration:
    """The arguments of `plugin`."""

    priority: int = 0
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


def plugin(*, priority: int = 0, before: Iterable[str] = (), after: Iterable[str] = ()) -> Callable[[F], F]:
    """Decorates a plugin's function to set its place in the order; undecorated functions have the defaults.

    All plugins of one call of `load` are imported first. Then their functions run, ordered by constraints,
    then priority, then the distribution's name. Plugins that were loaded earlier keep their place.

    Args:
        priority: Plugins of higher priority run earlier.
        before: Plugins that run after this one: a name, `DISTRIBUTION:NAME`, or a distribution's name for all
        of its plugins. Unknown names have no effect.
        after: Plugins that run before this one, in the same forms as `before`.

    Raises:
        ArgumentError: An argument has a wrong type.
    """
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) >= 2**31:
        raise ArgumentError(
            f"priority is {priority!r}; valid: an int of 32 bits", argument="priority", found=priority
        )
    declaration = Declaration(priority, (*texts("before", before),), (*texts("after", after),))

    def decorate(function: F) -> F:
        setattr(function, _ATTRIBUTE, declaration)
        return function

    return decorate


def declaration_of(function: object) -> Declaration:
    """The declaration of a plugin's function."""
    found = getattr(function, _ATTRIBUTE, None)
    return found if isinstance(found, Declaration) else Declaration()


def in_order(plugins: Sequence[Plugin], declarations: Sequence[Declaration]) -> list[int]:
    """The order of plugins, as indices.

    Raises:
        OrderError: The declarations form a cycle; the error's `members` are the plugins' qualified names.
    """
    places = [(each.priority, list(each.before), list(each.after)) for each in declarations]
    return _core.order_plugins(list(zip(plugins, places, strict=True)))
