"""Torch's own hooks on modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.modules import module as of_modules

Numbered = Mapping[int, Any]
"""Hooks by number; torch never reuses a number."""


def hooks_of(part: nn.Module) -> tuple[Numbered, ...]:
    """The torch hooks that a call of this module runs, in the module's own mappings."""
    return part._forward_pre_hooks, part._forward_hooks


def hooks_of_all() -> tuple[Numbered, ...]:
    """The torch hooks that a call of any module runs."""
    return of_modules._global_forward_pre_hooks, of_modules._global_forward_hooks
