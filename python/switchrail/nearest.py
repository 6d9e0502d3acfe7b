"""What a message says of valid names that are near to a wrong one."""

from __future__ import annotations

from collections.abc import Iterable

from switchrail import _core


def nearest(found: object, valid: Iterable[str]) -> tuple[tuple[str, ...], str]:
    """The valid names that are near to what was found, best first, and the words that give them.

    The words continue a message, `; nearest: a, b`; they are empty where no name is near.
    """
    names = tuple(_core.nearest(str(found), list(valid)))
    return names, f"; nearest: {', '.join(names)}" if names else ""
