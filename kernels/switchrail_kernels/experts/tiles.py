"""Sizes of the tiles of experts, by how many rows an expert has on average."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from switchrail_kernels.device import has_large_shared_memory


@dataclass(frozen=True, slots=True)
class Tile:
    """How a program computes its part of a product.

    Attributes:
        columns: Columns of the result.
        depth: How much of the sum at once.
        warps: Warps.
        stages: Stages of the loads.
    """

    columns: int
    depth: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles of a call.

    Attributes:
        rows: Pairs of one block.
        gate_up: The first product's; it has as many columns of `gate` and of `up`.
        down: The second product's.
    """

    rows: int
    gate_up: Tile
    down: Tile


EXACT = Tiles(16, Tile(32, 32, 4, 1), Tile(32, 32, 4, 1))
"""For float32, whose products are single multiplications."""

SMALL = Tiles(32, Tile(32, 64, 4, 3), Tile(64, 64, 4, 3))
"""For devices with little shared memory."""

FITTED = (
    (10.0, Tiles(16, Tile(32, 128, 4, 4), Tile(64, 128, 4, 4))),
    (15.0, Tiles(32, Tile(32, 128, 4, 4), Tile(64, 128, 4, 4))),
    (96.0, Tiles(64, Tile(64, 64, 4, 4), Tile(128, 64, 4, 4))),
    (float("inf"), Tiles(128, Tile(128, 64, 8, 3), Tile(256, 64, 8, 3))),
)
"""Rows of an expert on average, up to which tiles serve: of those that `benchmarks/experts.py --tune` times,
the fastest on an H200 (2026-11-23), or within 2%."""

MOST_PAIRS = 22
"""Pairs of a row and an expert up to which each is computed alone."""


def tiles(average: float, dtype: torch.dtype, device: torch.device) -> Tiles:
    """The tiles where an expert has `average` rows."""
    if dtype == torch.float32:
        return EXACT
    if not has_large_shared_memory(device):
        return SMALL
    return next(found for most, found in FITTED if average <= most)


__all__ = ["EXACT", "FITTED", "MOST_PAIRS", "SMALL", "Tile", "Tiles", "tiles"]
