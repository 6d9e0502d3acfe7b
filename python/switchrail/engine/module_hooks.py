"""Torch's own forward hooks on modules."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType
from typing import Any, Final

from torch import nn
from torch.nn.modules import module as of_modules
from torch.utils.hooks import RemovableHandle

Numbered = Mapping[int, Any]
"""Hooks by number; torch never reuses a number."""

_ADDING: Final[frozenset[CodeType]] = frozenset(
    add.__code__
    for add in (
        nn.Module.register_forward_pre_hook,
        nn.Module.register_forward_hook,
        of_modules.register_module_forward_pre_hook,
        of_modules.register_module_forward_hook,
    )
)


def hooks_of(part: nn.Module) -> tuple[Numbered, ...]:
    """The torch hooks that a call of this module runs, in the module's own mappings."""
    return part._forward_pre_hooks, part._forward_hooks


def hooks_of_all() -> tuple[Numbered, ...]:
    """The torch hooks that a call of any module runs."""
    return of_modules._global_forward_pre_hooks, of_modules._global_forward_hooks


def numbers_given() -> int:
    """How many numbers torch has given to hooks; increases with each new hook on any module."""
    return RemovableHandle.next_id


def is_adding() -> bool:
    """Whether a thread is adding a hook: for a moment, a new hook has a number but is in no mapping."""
    return any(
        frame.f_code in _ADDING for top in sys._current_frames().values() for frame in _with_callers(top)
    )


def _with_callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
