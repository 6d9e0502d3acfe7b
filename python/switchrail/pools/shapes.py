"""What one layer keeps of a token or of a sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

KVKind = Literal["mha", "mla"]
"""What a layer keeps of a token: keys and values, or a latent with its rotary part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """Keys and values of a softmax layer: `heads` times `size` values each, a token."""

    kind: ClassVar[KVKind] = "mha"

    heads: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentShape:
    """What multi-head latent attention keeps of a token: a latent and the rotary part of the key."""

    kind: ClassVar[KVKind] = "mla"

    latent: int
    rotary: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaShape:
    """The state of a delta-rule layer: [heads, value_size, key_size], a sequence."""

    heads: int
    value_size: int
    key_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvShape:
    """The window of a causal convolution: the last `width` - 1 inputs of `channels` values, a sequence."""

    channels: int
    width: int


TokenShape = KVShape | LatentShape
"""Kept in pages."""

StateShape = DeltaShape | ConvShape
"""Kept in slots."""

Shape = TokenShape | StateShape


def pages_of(tokens: int, page_size: int) -> int:
    """Pages that hold so many tokens."""
    return -(-tokens // page_size)


__all__ = [
    "ConvShape",
    "DeltaShape",
    "KVKind",
    "KVShape",
    "LatentShape",
    "Shape",
    "StateShape",
    "TokenShape",
    "pages_of",
]
