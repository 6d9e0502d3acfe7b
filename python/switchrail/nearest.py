"""Finds valid names near to a wrong one, for messages."""

from __future__ import annotations

from collections.abc import Iterable

from switchrail import _core


def nearest(found: object, valid: Iterable[str]) -> tuple[tuple[str, ...], str]:
    """The valid names near to the one found, best first, and a text that lists them.

    The text continues a message: `; nearest: a, b`. It is empty if no name is near.
    """
    names = tuple(_core.nearest(str(found), list(valid)))
    return names, f"; nearest: {', '.join(names)}" if names else ""
