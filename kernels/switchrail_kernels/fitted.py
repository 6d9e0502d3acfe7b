"""Measured constants that the kernels' plans use, in one table per device.

The constants affect speed, and results only by rounding. Tile sizes are not among them: these are compiled
into the kernels, and defined in the kernels' modules.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Walk = Literal["delta", "lightning", "mamba2"]
"""The kernels that scan a recurrent state over the chunks of a sequence."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Microseconds per chunk, by the average number of programs per multiprocessor.

    Attributes:
        points: Pairs (number of programs, microseconds), ascending. The time is linear between points and
            constant before the first. If two points have the same number of programs, the first applies at
            that number.
        each: Microseconds per program if there are more programs than at the last point. The time is then
            this number times the number of programs.
        rounds: Whether a number of programs beyond the last point is first rounded up to a whole number.
    """

    points: tuple[tuple[float, float], ...]
    each: float
    rounds: bool = False

    def at(self, programs: float) -> float:
        """The time per chunk, in microseconds, with this number of programs per multiprocessor."""
        if programs > self.points[-1][0]:
            return self.each * (math.ceil(programs) if self.rounds else programs)
        before = self.points[0]
        for after in self.points:
            if programs <= after[0]:
                break
            before = after
        if after[0] == before[0]:
            return after[1]
        return before[1] + (after[1] - before[1]) * (programs - before[0]) / (after[0] - before[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Cost of scanning a state, for head sizes of 128; see `switchrail_kernels.segments`.

    Attributes:
        pace: Time per chunk.
        end: Cost per chunk of computing a segment's map, relative to scanning the chunk.
        compose: Microseconds to compose one segment's map.
        parts: Programs that scan a segment of one head.
        end_parts: Programs that compute the map of a segment of one head.
        first: Length of a first segment relative to the others.
        resident: Maximum number of programs per multiprocessor in the first of two launches, not counting
            programs for sequences that are not split.
        least: Minimum number of chunks of a sequence that is split.
    """

    pace: Pace
    end: float
    compose: float
    parts: int
    end_parts: int
    first: float
    resident: float
    least: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Latents:
    """Cost of attending to latents, or to expanded keys and values; see `switchrail_kernels.mla.plan`.

    Attributes:
        make: Cost of one multiplication of the expansion, relative to one of attention to latents.
        attend: Cost of one multiplication of attention to expanded keys and values, relative to one of
            attention to latents.
        row: Fixed cost of a row that attends to latents (two matrix products, the start of a program), in
            keys.
        tile: Fixed cost of a tile that attends to expanded keys and values, in keys.
        call: Fixed cost of a call that attends to latents (launches, and multiprocessors that are idle at its
            end), in multiplications.
        fewest: Minimum number of rows of a sequence for which expansion pays off.
        start: Fixed cost of a program that attends to a piece of a cache, in keys.
        merge: Cost of merging pieces, in keys.
    """

    make: float
    attend: float
    row: float
    tile: float
    call: float
    fewest: int
    start: float
    merge: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Caches:
    """How attention splits caches; see `switchrail_kernels.attention.plan`.

    Attributes:
        piece: Minimum keys per piece.
        resident: Programs of a decode that a multiprocessor runs at once.
        programs: Maximum programs for the tiles of one sequence, in prefill and verification.
    """

    piece: int
    resident: int
    programs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """The constants of one device.

    Attributes:
        device: The device's name.
        capability: The device's compute capability.
        date: The date of the measurement.
        versions: The versions of torch and Triton.
        command: The command that made the measurement.
        walks: Cost of scanning a state, by kernel.
        latents: Cost of `mla`.
        caches: How `attention` splits caches.
    """

    device: str
    capability: tuple[int, int]
    date: str
    versions: str
    command: str
    walks: dict[Walk, Costs]
    latents: Latents
    caches: Caches


H200 = Fitted(
    device="NVIDIA H200",
    capability=(9, 0),
    date="2026-11-21",
    versions="torch 2.11, Triton 3.6",
    command="not recorded",
    walks={
        # Two programs at once on a multiprocessor take nearly as long as if they ran one after the other.
        "delta": Costs(
            pace=Pace(((1.0, 0.61), (1.27, 1.15), (1.9625, 1.15)), each=0.586),
            end=0.58,
            compose=6.0,
            parts=2,
            end_parts=4,
            first=0.85,
            resident=2.0,
            least=160,
        ),
        "lightning": Costs(
            pace=Pace(((4 / 3, 0.88),), each=0.66),
            end=0.5,
            compose=1.0,
            parts=2,
            end_parts=2,
            first=0.5,
            resident=2.0,
            least=96,
        ),
        # Two programs on a multiprocessor hardly slow each other down.
        "mamba2": Costs(
            pace=Pace(((1.0, 1.4), (1.0, 1.55), (2.0, 1.55)), each=0.92, rounds=True),
            end=0.5,
            compose=1.0,
            parts=1,
            end_parts=1,
            first=0.7,
            resident=2.0,
            least=64,
        ),
    },
    # Attending to latents runs at about 390 TFLOP/s, expansion at 460, attending to expanded keys and values
    # at 560. A call has 17 us of overhead.
    latents=Latents(make=0.85, attend=0.7, row=250, tile=300, call=3.3e9, fewest=48, start=192, merge=256),
    caches=Caches(piece=256, resident=2, programs=128),
)

DEVICES = (H200,)
"""The constants of all measured devices, by ascending compute capability."""


def nearest(capability: tuple[int, int], devices: tuple[Fitted, ...] = DEVICES) -> Fitted:
    """The constants for this compute capability, else for the nearest lower one, else the first ones."""
    earlier = [fitted for fitted in devices if fitted.capability <= capability]
    return earlier[-1] if earlier else devices[0]
