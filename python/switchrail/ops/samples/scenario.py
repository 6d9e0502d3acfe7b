"""What the conformance suite tries and the benchmarks time, as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from switchrail._core import OPS

if TYPE_CHECKING:
    from switchrail.ops.batch import Phase

Hardness = Literal["usual", "hard", "bfloat16_state", "company"]


GATES = {
    "decaying": "decays like a trained model's",
    "near_zero": "decays near 0 and exactly 0: the past is forgotten at once",
    "near_one": "decays near 1: the past is kept long",
    "one": "no decay at all",
    "mixed": "decays of every kind, from number to number",
}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A call that is held against the oracle.

    Attributes:
        name: Its name, unique with the op.
        about: What it is for.
        ops: The ops that have it; one that is among an op's own scenarios is that op's.
        prefill: The lengths in prefill; None where there is nothing of the kind.
        decode: The number of sequences in decode; None likewise.
        verify: The numbers of drafted rows in verify; None likewise.
        arguments: Of the op's generator.
        past: Whether, in prefill, there are tokens in the cache before those of the call.
        hardness: The row of the table of bounds.
        features: What the backend must claim.
        core: Whether a quick run has it in every dtype, and not in the first one only.
        quick: Whether a quick run has it at all.
    """

    name: str
    about: str
    ops: tuple[str, ...] = OPS
    prefill: tuple[int, ...] | None = (70, 9, 0, 33)
    decode: int | None = 4
    verify: tuple[int, ...] | None = (3, 5, 0, 1)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    past: bool = False
    hardness: Hardness = "usual"
    features: tuple[str, ...] = ()
    core: bool = False
    quick: bool = True


def heads(*choices: Mapping[str, int]) -> tuple[Scenario, ...]:
    """Scenarios of other numbers of heads than the generator's own."""
    return tuple(
        Scenario(
            name=f"heads-{'-'.join(map(str, choice.values()))}",
            about="other numbers of heads: " + ", ".join(f"{name} {n}" for name, n in choice.items()),
            prefill=(35, 5),
            arguments=choice,
        )
        for choice in choices
    )


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A batch that the benchmarks time.

    Attributes:
        phase: The phase.
        lengths: The rows of each sequence.
        past: Tokens in the cache before each sequence's rows.
        sizes: The axes of the contract that the lengths leave open.
        decays: Whether the gates decay; else they are exactly 1.
        model: Whose sizes they are, where several models' are timed.
        held_out: Whether no choice was made by looking at this shape.
    """

    phase: Phase
    lengths: tuple[int, ...]
    past: int = 0
    sizes: Mapping[str, int]
    decays: bool = True
    model: str = ""
    held_out: bool = False

    @property
    def seen(self) -> float:
        """Pairs of a row and a token that it sees, all rows' together."""
        return sum(n * self.past + n * (n + 1) / 2 for n in self.lengths)


def timed(phase: Phase, sizes: Mapping[str, int], *batches: tuple[int, ...], **more: Any) -> Iterator[Timed]:
    """Batches by their lengths; `more` as `Timed` takes it."""
    return (Timed(phase=phase, lengths=lengths, sizes=sizes, **more) for lengths in batches)


__all__ = ["GATES", "Hardness", "Scenario", "Timed", "heads", "timed"]
