"""Tile sizes for the products of experts, by the average number of rows per expert."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from switchrail_kernels.device import has_large_shared_memory


@dataclass(frozen=True, slots=True)
class Tile:
    """A program's part of a product.

    Attributes:
        columns: Columns of the result.
        depth: Terms of the sum per step.
        warps: Warps.
        stages: Pipeline stages of the loads.
    """

    columns: int
    depth: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles of a call.

    Attributes:
        rows: Pairs per block.
        gate_up: The first product's tile: `columns` columns of `gate`, and as many of `up`.
        down: The second product's tile.
    """

    rows: int
    gate_up: Tile
    down: Tile


EXACT = Tiles(16, Tile(32, 32, 4, 1), Tile(32, 32, 4, 1))
"""Tiles for float32, which does not use tensor cores."""

SMALL = Tiles(32, Tile(32, 64, 4, 3), Tile(64, 64, 4, 3))
"""Tiles for devices with little shared memory."""

FITTED = (
    (10.0, Tiles(16, Tile(32, 128, 4, 4), Tile(64, 128, 4, 4))),
    (15.0, Tiles(32, Tile(32, 128, 4, 4), Tile(64, 128, 4, 4))),
    (96.0, Tiles(64, Tile(64, 64, 4, 4), Tile(128, 64, 4, 4))),
    (float("inf"), Tiles(128, Tile(128, 64, 8, 3), Tile(256, 64, 8, 3))),
)
"""Tiles, each with the maximum average number of rows per expert for which they are used.

On an H200 (2026-11-23), each tile is the fastest of the tiles that `benchmarks/experts.py --tune` times, or
within 2% of the fastest.
"""

MOST_PAIRS = 22
"""Maximum number of pairs (row, expert) for which each pair is computed alone."""

ALONE = Tiles(1, Tile(8, 512, 4, 1), Tile(4, 512, 4, 1))
"""The tiles for single pairs."""

AHEAD = 192
"""Maximum number of weights per thread that the second product reads before the first product has ended."""


def tiles(average: float, dtype: torch.dtype, device: torch.device) -> Tiles:
    """The tiles for an average of `average` rows per expert."""
    if dtype == torch.float32:
        return EXACT
    if not has_large_shared_memory(device):
        return SMALL
    return next(found for most, found in FITTED if average <= most)
