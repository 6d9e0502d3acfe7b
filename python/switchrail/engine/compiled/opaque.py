"""Modules that a compiled layer runs unchanged, as one operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from switchrail.engine.compiled import operators

_ATTRIBUTE: Final = "_switchrail_index"

OUTERMOST: Final = 2**31 - 1
"""The priority of `forward`: the operator calls all other hooks of such a class, so they are never traced."""


def make_opaque(part: nn.Module) -> None:
    """Make `forward` apply to a module."""
    part.__dict__[_ATTRIBUTE] = operators.number(part)


def forward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Hook: calls the operator if torch.compile is tracing a module, the first argument, made opaque."""
    index = args[0].__dict__.get(_ATTRIBUTE)
    if index is None or not torch.compiler.is_compiling():
        return original(*args, **kwargs)
    return operators.module(index, args[1])


__all__ = ["OUTERMOST", "forward", "make_opaque"]
