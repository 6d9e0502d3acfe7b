"""What a plugin's function says of its place among the other plugins."""

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
    """What `plugin` was given."""

    priority: int = 0
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


def plugin(*, priority: int = 0, before: Iterable[str] = (), after: Iterable[str] = ()) -> Callable[[F], F]:
    """Decorates a plugin's function to say when it runs; a function without it has the defaults.

    All plugins that a call of `load` loads are imported first. Then their functions run: constraints come
    first, then priority, then the distribution's name. Plugins that were loaded before keep their place.

    Args:
        priority: Higher ones run earlier.
        before: Plugins that it runs before: the name of one, `DISTRIBUTION:NAME`, or a distribution's name
            for all of its plugins. What is not there constrains nothing.
        after: Plugins that it runs after.

    Raises:
        ArgumentError: An argument has another type.
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
    """What a plugin's function declares."""
    found = getattr(function, _ATTRIBUTE, None)
    return found if isinstance(found, Declaration) else Declaration()


def in_order(plugins: Sequence[Plugin], declarations: Sequence[Declaration]) -> list[int]:
    """The order of plugins, as indices.

    Raises:
        OrderError: The declarations form a cycle; its members are qualified names.
    """
    places = [(each.priority, list(each.before), list(each.after)) for each in declarations]
    return _core.order_plugins(list(zip(plugins, places, strict=True)))
