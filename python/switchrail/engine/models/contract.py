"""What connects one kind of mixer to the dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from torch import nn

from switchrail.pools import Shape

KEYWORD: Final = "switchrail"
"""The keyword that carries (dispatcher, layer id) from a mixer's call to the functions that it calls."""


@dataclass(frozen=True, kw_only=True)
class MixerContract:
    """A mixer whose functions the engine takes over.

    Attributes:
        shapes: Reads from a mixer what each op that it runs keeps, by op; a mixer that asks for something
            which the engine can't do raises CheckpointError.
        hooks: Name of a function of the modelling module -> an `around` hook, `hook(original, *args,
            **kwargs)`, which leaves calls without `KEYWORD` to the original.
        packed: Whether the mixer's functions refuse packed sequences (by `seq_idx`) where the hooks are
            missing.
    """

    shapes: Callable[[nn.Module], dict[str, Shape]]
    hooks: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    packed: bool = False


__all__ = ["KEYWORD", "MixerContract"]
