"""Acme's gated delta rule. Registering it imports neither torch nor the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from switchrail import Registry


@dataclass(frozen=True)
class AcmeConfig:
    """What a user can set, in Python with `runtime.configure("gated_delta", "acme", scale=0.5)`."""

    scale: float = 1.0


def register(registry: Registry) -> None:
    """Registers what this distribution has; the target of its entry point."""
    registry.register(
        "acme",
        "acme_gdn.kernel:AcmeGatedDelta",
        op="gated_delta",
        devices=("cpu", "cuda"),
        state_layouts=("VK",),
        config=AcmeConfig,
    )
