"""Constants of the kernels' plans that were found by timing: one table a device.

They decide how fast a call is, and never whether it is right. Sizes of tiles, which kernels are compiled for,
are not among them; they stand beside the kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Walk = Literal["delta", "lightning", "mamba2"]
"""The kernels that walk a recurrent state over the chunks of a sequence."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Microseconds that a chunk takes, by how many programs each multiprocessor has on average.

    Attributes:
        points: Programs and microseconds, ascending. The time is linear between two points and constant
            before the first; of two points with the same number of programs the first counts there.
        each: Microseconds a program, for more programs than the last point has.
        rounds: Whether these run in rounds, each as long as a full one.
    """

    points: tuple[tuple[float, float], ...]
    each: float
    rounds: bool = False

    def at(self, programs: float) -> float:
        """The time with so many programs."""
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
    """Cost of walking a state, for head sizes of 128; see `switchrail_kernels.segments`.

    Attributes:
        pace: Time of a chunk.
        end: Work on a chunk of a segment whose function is looked for, relative to that on another chunk.
        compose: Microseconds of composing one segment's function.
        parts: Programs that walk a segment of one head.
        end_parts: Programs that look for its function.
        first: Length of a first segment relative to the others.
        resident: Most programs of a first launch on each multiprocessor, for the sequences that are split.
        least: Fewest chunks of a sequence that is split.
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
    """Cost of attending to latents or to keys and values made from them; see `switchrail_kernels.mla.plan`.

    Attributes:
        make: Cost of one product that makes keys and values, relative to one that attends to latents.
        attend: Cost of one product that attends to keys and values, relative to the same.
        row: Cost of an absorbed row besides its keys, in keys: products with both weights, and a start.
        tile: Cost of a tile that attends to keys and values besides its keys, in keys.
        call: Cost of a call that attends to latents besides its rows, in products: launches and their tails.
        fewest: Fewest rows of a sequence for which making keys and values gains anything.
        start: Cost of a program that attends to a piece of a cache besides its keys, in keys.
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
    """How attention cuts caches; see `switchrail_kernels.attention.plan`.

    Attributes:
        piece: Fewest keys of a piece.
        resident: Programs of a decode that a multiprocessor runs at once.
        programs: Programs that the tiles of one sequence are cut into in prefill and verification, at most.
    """

    piece: int
    resident: int
    programs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """The constants of one device.

    Attributes:
        device: Its name.
        capability: Its compute capability.
        date: When they were found.
        versions: With which versions of torch and Triton.
        command: How to find them again.
        walks: Cost of walking a state, by kernel.
        latents: Cost of `mla`.
        caches: How `attention` cuts caches.
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
    command="none was kept",
    walks={
        # Two programs on a multiprocessor take nearly as long as one after the other.
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
        # Two programs on a multiprocessor hardly hold each other up.
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
    # Attending to latents runs at some 390 TFLOP/s, making keys and values at 460, attending to these at 560;
    # a call takes 17 us besides.
    latents=Latents(make=0.85, attend=0.7, row=250, tile=300, call=3.3e9, fewest=48, start=192, merge=256),
    caches=Caches(piece=256, resident=2, programs=128),
)

DEVICES = (H200,)
"""All tables, by compute capability."""


def nearest(capability: tuple[int, int], devices: tuple[Fitted, ...] = DEVICES) -> Fitted:
    """The table for a compute capability: its own, else that of the latest one before it, else the first."""
    earlier = [fitted for fitted in devices if fitted.capability <= capability]
    return earlier[-1] if earlier else devices[0]


__all__ = ["DEVICES", "H200", "Caches", "Costs", "Fitted", "Latents", "Pace", "Walk", "nearest"]
