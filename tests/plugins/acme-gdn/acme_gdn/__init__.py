"""Acme's gated delta rule, softmax attention and model family. Registering them doesn't import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from switchrail import Registry


SERVED: Mapping[str, Any] = {"phases": ("prefill", "decode", "verify"), "devices": ("cpu", "cuda")}


@dataclass(frozen=True)
class AcmeConfig:
    """The kernel's settings. A user sets them with `runtime.configure("gated_delta", "acme", scale=0.5)`.

    Attributes:
        scale: A factor of the output.
    """

    scale: float = 1.0


def kinds(config: Mapping[str, Any]) -> list[str]:
    """The kind of each layer of one of Acme's models."""
    names = {"conv": "short_conv", "full_attention": "full_attention"}
    return [names[word] for word in config["layer_types"]]


def register(registry: Registry) -> None:
    """Register everything in this distribution; the target of its entry point."""
    registry.register(
        "acme",
        "acme_gdn.kernel:AcmeGatedDelta",
        op="gated_delta",
        **SERVED,
        state_layouts=("VK",),
        features=("row_states", "device_parents"),
        config=AcmeConfig,
    )
    registry.register(
        "acme",
        "acme_gdn.kernel:AcmeAttention",
        op="attention",
        **SERVED,
        features=("trees", "device_parents"),
        priority=-10,
    )
    registry.family("acme_hybrid", "acme_gdn.model:FAMILY", kinds=kinds)
