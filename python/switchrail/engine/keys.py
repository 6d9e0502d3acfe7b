"""Keys: the sizes of steps that an engine captures. Does not import torch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final, Literal, NamedTuple

from switchrail.engine.options import EngineOptions

StepKind = Literal["decode", "verify", "mixed", "propose"]

_SHORTEST: Final = 1024
"""Cache lengths to capture: this number of tokens, four times as many, and so on; the last is the maximum."""

_FEW: Final = (1, 2, 4)
"""The smallest numbers of sequences to capture."""

_STEP: Final = 8
"""The next number of sequences, and the smallest difference between further numbers."""

_MIXED: Final = 16
_MOST_MIXED: Final = 2048
"""Rows of the smallest and the largest captured mixed step. With more rows, the host is fast enough."""


class Key(NamedTuple):
    """Identifies the steps that one graph can run.

    Attributes:
        kind: `decode` or, with drafts, `verify` for steps without prompt tokens; `mixed` for steps with
            prompt tokens; `propose` for all steps of a draft model's proposals.
        rows: Rows of the step, including padding; a decode has one row per sequence. For proposals, the
            number of sequences.
        tokens: Maximum tokens in a cache; None for any number.
        width: Rows of each sequence in a verification, including padding; otherwise 1.
    """

    kind: StepKind
    rows: int
    tokens: int | None = None
    width: int = 1

    @property
    def name(self) -> str:
        """A description of the key's steps."""
        if self.kind == "mixed":
            return f"steps of {self.rows} rows with prompt tokens"
        count = self.rows // self.width
        sequences = f"{count} sequence{'s' * (count != 1)} with caches of up to {self.tokens} tokens"
        if self.kind == "verify":
            return f"verifications of {sequences}, {self.width} rows each"
        return f"{'decodes of' if self.kind == 'decode' else 'proposals for'} {sequences}"


def sizes(most: int) -> tuple[int, ...]:
    """The numbers of sequences to capture: a few small ones, at most four per power of two, and `most`."""
    found = [size for size in _FEW if size < most]
    size = _STEP
    while size < most:
        found.append(size)
        size += max(_STEP, 2 ** (size.bit_length() - 1) // 4)
    return (*found, most)


def lengths(most: int) -> tuple[int, ...]:
    """The lengths of caches to capture, up to `most`."""
    found = []
    length = _SHORTEST
    while length < most:
        found.append(length)
        length *= 4
    return (*found, most)


def mixed_rows(most: int) -> tuple[int, ...]:
    """The numbers of rows to capture for mixed steps: powers of two, 1.5 times these, and the maximum."""
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
        sequences: The numbers of sequences in decodes, proposals and verifications.
        tokens: The maximum lengths of these sequences' caches, in tokens.
        rows: The numbers of rows of mixed steps; empty if mixed steps are not captured.
        width: The rows of each sequence in a verification; 0 if verifications are not captured.
        proposes: Whether whole proposals are captured.
    """

    sequences: tuple[int, ...]
    tokens: tuple[int, ...]
    rows: tuple[int, ...]
    width: int = 0
    proposes: bool = False

    @classmethod
    def of(
        cls,
        options: EngineOptions,
        max_length: int,
        *,
        mixed: bool,
        caches: bool = True,
        verify: bool = False,
        proposes: bool = False,
    ) -> Keys:
        """The keys of an engine.

        Args:
            options: The engine's options.
            max_length: Maximum tokens per sequence.
            mixed: Whether steps with prompt tokens are captured.
            caches: Whether any layer has a paged cache; otherwise all lengths share one key.
            verify: Whether verifications are captured.
            proposes: Whether whole proposals are captured.
        """
        rows = mixed_rows(options.max_tokens_per_step) if mixed else ()
        tokens = lengths(max_length) if caches else (max_length,)
        width = 1 + options.draft_tokens if verify else 0
        return cls(sizes(options.max_sequences), tokens, rows, width, proposes)

    def __iter__(self) -> Iterator[Key]:
        """The keys of decodes, proposals, verifications and mixed steps, in this order."""
        pairs = list(product(self.sequences, self.tokens))
        yield from (Key("decode", size, length) for size, length in pairs)
        if self.proposes:
            yield from (Key("propose", size, length) for size, length in pairs)
        if self.width:
            yield from (Key("verify", size * self.width, length, self.width) for size, length in pairs)
        yield from (Key("mixed", rows) for rows in self.rows)

    def decode(self, sequences: int, longest: int) -> Key:
        """The key that serves a decode.

        Args:
            sequences: The number of sequences.
            longest: Tokens in the longest cache.
        """
        return Key(
            "decode",
            self.sequences[bisect_left(self.sequences, sequences)],
            self.tokens[bisect_left(self.tokens, longest)],
        )

    def propose(self, sequences: int, longest: int) -> Key | None:
        """The key that serves proposals; None if these are not captured. Same arguments as `decode`."""
        return self.decode(sequences, longest)._replace(kind="propose") if self.proposes else None

    def verify(self, sequences: int, longest: int) -> Key | None:
        """The key that serves a verification; None if verifications are not captured.

        Args:
            sequences: The number of sequences.
            longest: Tokens in the longest cache, without drafts.
        """
        if not self.width:
            return None
        _, size, tokens, _ = self.decode(sequences, longest)
        return Key("verify", size * self.width, tokens, self.width)

    def mixed(self, rows: int) -> Key | None:
        """The key for a step with prompt tokens; None if no captured step has so many rows."""
        index = bisect_left(self.rows, rows)
        return Key("mixed", self.rows[index]) if index < len(self.rows) else None
