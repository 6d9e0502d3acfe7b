"""Modules that compiled layers run unchanged, each as one torch operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from switchrail.engine.compiled import operators

_ATTRIBUTE: Final = "_switchrail_index"

OUTERMOST: Final = 2**31 - 1
"""The priority of the hook `forward`. It is outermost, so torch.compile doesn't trace the other hooks."""


def make_opaque(part: nn.Module) -> None:
    """Mark a module for `forward`."""
    part.__dict__[_ATTRIBUTE] = operators.number(part)


def forward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Hook: calls the module's operator if the module is marked and torch.compile is tracing."""
    index = args[0].__dict__.get(_ATTRIBUTE)
    if index is None or not torch.compiler.is_compiling():
        return original(*args, **kwargs)
    return operators.module(index, args[1])
