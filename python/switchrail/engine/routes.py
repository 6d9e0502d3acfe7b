"""The routes that an engine needs, for the engine itself and for those who ask what it would do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from switchrail._core import Layout, RoutePlan
    from switchrail.platform import Platform
    from switchrail.runtime import Runtime

STATE_DTYPE = torch.float32
"""Of the recurrent states."""


def plan_routes(
    runtime: Runtime,
    layout: Layout,
    *,
    platform: Platform,
    dtype: torch.dtype,
    page_size: int,
    preferences: Mapping[str, str] | None,
    phases: Iterable[str] = ("prefill", "decode"),
) -> RoutePlan:
    """Plans a model on what an engine's pools hold; see `Runtime.plan`."""
    return runtime.plan(
        layout,
        device=platform,
        dtype=dtype,
        state_dtype=STATE_DTYPE,
        page_size=page_size,
        state_layouts={"gated_delta": "VK"},
        preferences=preferences,
        phases=phases,
    )
