"""The steps that are captured: the table of keys, for the engine and for `explain`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from switchrail.engine.options import EngineOptions

StepKind = Literal["decode", "mixed"]

_SHORTEST: Final = 1024
"""Tokens of the first class of caches; each further class is four times as long."""

_FEW: Final = (1, 2, 4)
_STEP: Final = 8

_MIXED: Final = 16
_MOST_MIXED: Final = 2048
"""Rows of the smallest and of the largest mixed step. With more rows the device is slower than the host."""


class Key(NamedTuple):
    """The steps that one graph serves.

    Attributes:
        kind: `decode` for steps without prompt tokens, `mixed` for steps with some.
        rows: Rows, padding included; in a decode one per sequence.
        tokens: Tokens of the longest cache; None for any number.
    """

    kind: StepKind
    rows: int
    tokens: int | None = None

    @property
    def name(self) -> str:
        """A description of these steps."""
        if self.kind == "decode":
            return f"decodes of {self.rows} sequences and {self.tokens} tokens"
        return f"steps of {self.rows} rows with prompt tokens"


def sizes(most: int) -> tuple[int, ...]:
    """The captured numbers of sequences: small ones, then steps of a quarter of the power of two below."""
    found = [size for size in _FEW if size < most]
    size = _STEP
    while size < most:
        found.append(size)
        size += max(_STEP, 2 ** (size.bit_length() - 1) // 4)
    return (*found, most)


def lengths(most: int) -> tuple[int, ...]:
    """The captured lengths of caches."""
    found = []
    length = _SHORTEST
    while length < most:
        found.append(length)
        length *= 4
    return (*found, most)


def mixed_rows(most: int) -> tuple[int, ...]:
    """The captured rows of mixed steps: powers of two and the numbers halfway between them."""
    most = min(most, _MOST_MIXED)
    found = []
    size = _MIXED
    while size < most:
        found.append(size)
        power = 2 ** (size.bit_length() - 1)
        size = size + power // 2
    return (*found, most)


@dataclass(frozen=True, slots=True)
class Keys:
    """All keys of an engine.

    Attributes:
        sequences: Rows of decodes.
        tokens: Lengths of their caches.
        rows: Rows of mixed steps; empty if these are not captured.
    """

    sequences: tuple[int, ...]
    tokens: tuple[int, ...]
    rows: tuple[int, ...]

    @classmethod
    def of(cls, options: EngineOptions, max_length: int, *, mixed: bool, caches: bool = True) -> Keys:
        """The keys of an engine.

        Args:
            options: The engine's options.
            max_length: Tokens of the longest sequence.
            mixed: Whether steps with prompt tokens are captured, in pieces.
            caches: Whether any layer has a paged cache; otherwise all lengths share one key.
        """
        rows = mixed_rows(options.max_tokens_per_step) if mixed else ()
        tokens = lengths(max_length) if caches else (max_length,)
        return cls(sizes(options.max_sequences), tokens, rows)

    def __iter__(self) -> Iterator[Key]:
        """Decodes by rows, then by tokens; then mixed steps by rows."""
        for size in self.sequences:
            for length in self.tokens:
                yield Key("decode", size, length)
        for rows in self.rows:
            yield Key("mixed", rows)

    def decode(self, sequences: int, longest: int) -> Key:
        """The key of a decode.

        Args:
            sequences: The number of sequences.
            longest: Tokens of the longest cache.
        """
        return Key(
            "decode",
            self.sequences[bisect_left(self.sequences, sequences)],
            self.tokens[bisect_left(self.tokens, longest)],
        )

    def mixed(self, rows: int) -> Key | None:
        """The key of a step with prompt tokens; None if it has too many rows."""
        index = bisect_left(self.rows, rows)
        return Key("mixed", self.rows[index]) if index < len(self.rows) else None


__all__ = ["Key", "Keys", "StepKind", "lengths", "mixed_rows", "sizes"]
