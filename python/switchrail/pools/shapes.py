"""Shapes of the memory that a layer needs for one token or one sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

KVKind = Literal["mha", "mla"]
"""The kind of a layer's cache: keys and values, or latents with their rotary parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """One token's key and value in a softmax layer, each [heads, size]."""

    kind: ClassVar[KVKind] = "mha"

    heads: int
    size: int

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes, by their names in `Layout.shape`."""
        return {
            "k_heads": self.heads,
            "v_heads": self.heads,
            "head_size_k": self.size,
            "head_size_v": self.size,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentShape:
    """One token's latent and rotary key part in multi-head latent attention, [latent] and [rotary]."""

    kind: ClassVar[KVKind] = "mla"

    latent: int
    rotary: int

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes, by their names in `Layout.shape`."""
        return {"head_size_k": self.latent + self.rotary, "head_size_v": self.latent}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaShape:
    """One sequence's recurrent state in a linear layer, [heads, value_size, key_size]."""

    heads: int
    value_size: int
    key_size: int

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes, by their names in `Layout.shape`."""
        return {"v_heads": self.heads, "head_size_k": self.key_size, "head_size_v": self.value_size}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvShape:
    """One sequence's window of a causal convolution: its last `width` - 1 inputs of `channels` values."""

    channels: int
    width: int

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes, by their names in `Layout.shape`."""
        return {"channels": self.channels, "width": self.width}


TokenShape = KVShape | LatentShape
"""Shapes of memory in pages."""

StateShape = DeltaShape | ConvShape
"""Shapes of memory in slots."""

Shape = TokenShape | StateShape


def pages_of(tokens: int, page_size: int) -> int:
    """The number of pages that `tokens` tokens need."""
    return -(-tokens // page_size)
