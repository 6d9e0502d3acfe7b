"""The scenarios of the conformance suite and the batches of the benchmarks, as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from switchrail._core import OPS

if TYPE_CHECKING:
    from switchrail.ops.batch import Phase

Hardness = Literal["usual", "hard", "bfloat16_state", "company"]


GATES = {
    "decaying": "decays as in trained models",
    "near_zero": "decays near 0 and exactly 0: the past is forgotten at once",
    "near_one": "decays near 1: the past is kept long",
    "one": "no decay at all",
    "mixed": "a mix of all kinds of decays",
}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A call that the conformance suite compares with the reference.

    Attributes:
        name: The scenario's name, unique for the op.
        about: The purpose of the scenario.
        ops: The ops that the scenario applies to; not used for a scenario in an op's `SCENARIOS`.
        prefill: The lengths of the sequences in prefill; None for no prefill.
        decode: The number of sequences in decode; None for no decode.
        verify: The numbers of drafted rows per sequence in verify; None for no verify.
        arguments: Arguments for the op's generator.
        past: Whether sequences have cached tokens before those of a prefill call.
        hardness: The key in the conformance suite's table of error bounds.
        features: The features that a backend must claim to be checked with this scenario.
        core: Whether a quick run includes the scenario in every dtype, not only in the first.
        quick: Whether a quick run includes the scenario at all.
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
    """Scenarios with numbers of heads other than the generator's defaults."""
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
        lengths: The number of rows of each sequence.
        past: Cached tokens before each sequence's rows.
        sizes: The sizes of the contract's axes that don't follow from the lengths.
        decays: Whether the gates decay; if not, the decay is exactly 1.
        model: The model that has these sizes, if the op is timed with several models' sizes.
        held_out: Whether no tuning used this shape.
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
        """The number of visible positions, summed over all rows."""
        return sum(n * self.past + n * (n + 1) / 2 for n in self.lengths)


def timed(phase: Phase, sizes: Mapping[str, int], *batches: tuple[int, ...], **more: Any) -> Iterator[Timed]:
    """One `Timed` for each tuple of lengths. `more` has further fields of `Timed`."""
    return (Timed(phase=phase, lengths=lengths, sizes=sizes, **more) for lengths in batches)
